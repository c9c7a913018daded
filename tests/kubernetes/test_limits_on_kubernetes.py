"""What a pod may use is what its host has, and how long its objects are kept: on a real cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engine_table_kubernetes import OBJECTS, RUN, KubernetesNodes
from engine_table_platform import Platform
from engine_table_play import Play
from engine_table_shapes import script
from team import listed

from headrace.runs import CauseKind

pytestmark = pytest.mark.timeout(600)

EATS = script("import time\ntime.sleep(2)\nblock = [b'x' * (1 << 20) for _ in range(2000)]", groups={"dnn": 1})
LIMIT = {"resources": {"limits": {"memory": "400Mi", "cpu": "500m"}}}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with KubernetesNodes().open(Path(tempfile.mkdtemp(prefix="hk-"))) as opened:
        yield opened


def test_a_program_that_eats_the_pods_memory_is_named_with_the_pods_limit(platform: Platform) -> None:
    play = Play(platform, "eats")
    job = platform.fitted(EATS.document(play.name, platform.folder), "")
    job["engines"]["kubernetes"]["groups"]["dnn"] = LIMIT
    platform.fitted = lambda given, python="": given  # it fits already
    play.submit(job)
    assert play.wait(60) == 1
    cause = play.run.cause
    assert cause is not None, str(play)
    assert (cause.kind, cause.host) == (CauseKind.OUT_OF_MEMORY, "algo-1"), str(play)
    assert "400 MiB" in str(cause)
    assert {second.memory for seconds in play.run.host_seconds().values() for second in seconds} == {400 << 20}
    play.assert_nothing_left()


AS_USER = script("import os\nopen(os.path.expanduser('~/x'), 'w')\nprint('I am', os.getuid())", groups={"dnn": 1})


@pytest.mark.parametrize("watched", [True, False])
def test_a_user_with_few_rights_has_a_home_and_all_goes_by_itself_when_nobody_looks_again(
    platform: Platform, watched: bool
) -> None:
    play = Play(platform, f"few-rights-{watched}".lower())
    job = platform.fitted(AS_USER.document(play.name, platform.folder), "")
    job["engines"]["kubernetes"] |= {"user": 1234, "linger": 60 if watched else 1, "ttl": 5}
    platform.fitted = lambda given, python="": given  # it fits already
    play.submit(job)
    if watched:
        assert play.wait(60) == 0, str(play)
        assert "I am 1234" in play.text()
    else:
        for process in psutil.process_iter(["cmdline"]):
            if play.run_id in " ".join(process.info["cmdline"] or ()) and "watch_run" in str(process.info["cmdline"]):
                process.kill()
    play.until(lambda: not listed(OBJECTS, "-l", RUN), "nothing is left", 90)

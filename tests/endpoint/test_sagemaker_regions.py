"""`--engine sagemaker` with two regions, each a `headrace serve` of its own: the first one is full."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sagemaker_loop import BUCKET, GROUPS, Loop, lines, members, open_loop, open_service
from service_relay import FULL, Relay

from headrace.errors import EngineRefused
from headrace.runs import Status
from serve_process import ServeProcess

pytestmark = pytest.mark.namespaces

WEST = "us-west-2"
SCRIPT = """
import os
with open(os.path.join(os.environ["SM_CHANNEL_TRAINING"], "where")) as file:
    where = file.read()
print(where, os.environ["SM_CURRENT_INSTANCE_TYPE"], flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w") as file:
    file.write(where)
"""


@pytest.fixture
def east(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    for service in open_service():
        yield open_loop(service, tmp_path, monkeypatch)
        service.close_clients()


@pytest.fixture
def west(east: Loop, tmp_path: Path) -> Iterator[ServeProcess]:
    """An endpoint of another region, for the same keys."""
    home = tmp_path / "west"
    (home / "serve").mkdir(parents=True, mode=0o700)
    shutil.copy(east.service.store / "keys.json", home / "serve")
    yield from open_service("--region", WEST, home=home)


def put(service: ServeProcess, text: str) -> None:
    folder = service.home / "buckets" / BUCKET / "data"
    folder.mkdir(parents=True)
    (folder / "where").write_text(text)


def test_a_job_for_which_one_region_is_full_runs_in_another_with_its_data_and_everything_comes_back(
    east: Loop, west: ServeProcess
) -> None:
    put(east.service, "east")
    with Relay(east.service.port, CreateTrainingJob=[FULL, FULL]) as relay:
        there = {"endpoint_url": west.url, "endpoint_urls": {}}
        retry = {"attempts": 3, "delay": 600, "instance_types": {"dnn": ["ml.m5.2xlarge"]}, "regions": {WEST: there}}
        options = {"endpoint_urls": {"sagemaker": relay.url}, "retry": retry}
        fields = {"inputs": {"training": f"s3://{BUCKET}/data"}, "instance_groups": GROUPS[1:]}
        job = east.job(SCRIPT, "moves", options, **fields)
        with pytest.raises(EngineRefused, match=f"regions.{WEST}: channel 'training'"):
            east.start(job)
        assert not relay.created(), "what another region lacks is told before anything is submitted"
        put(west, "west")
        handle = east.start(job)
        assert handle.wait(90) is Status.COMPLETED, (handle.cause, west.log)
        assert relay.created() == [handle.id, f"{handle.id}-try2"], "with other types first"
    name = f"{handle.id}-try3"
    assert lines(handle) == ["dnn/algo-1[0] west ml.m5.xlarge"]
    assert handle.run.state().attempt == 3
    told = [event.message for event in handle.run.events() if getattr(event, "message", "")]
    assert any(f"CapacityError: submitted again (attempt 3) in {WEST}: ml.m5.xlarge" in each for each in told)
    made = west.home / "buckets" / BUCKET / "out"
    assert members(made / name / "output" / "model.tar.gz") == {"weights": b"west"}
    assert list((made / "headrace" / "runs" / "attempts" / "3" / handle.id).iterdir()), "its record is where it ran"
    for bucket in (east.bucket, made.parent):
        assert not list((bucket / "out" / "headrace" / "channels").rglob("*")), "no secret is left in either region"

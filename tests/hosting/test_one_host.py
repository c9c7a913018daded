"""Every host of a run has a supervisor of its own on its own machine: one run, one record, one model."""

from __future__ import annotations

import itertools
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines_of_a_run import Machines, groups, job

from headrace.runs import Status
from headrace.runs.events import HostNotCollected, HostReleased, RunFinished, SecondaryStatus

_numbers = itertools.count(1)

TRAIN = """
    import os, time
    from pathlib import Path
    host, group = os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"]
    print("here is", host, flush=True)
    model = Path(os.environ["SM_MODEL_DIR"])
    (model / f"of-{host}").write_text(host)
    (model / "same").write_text("same")
    (model / "link").symlink_to("same")
    (Path(os.environ["SM_OUTPUT_DATA_DIR"]) / f"notes-{host}").write_text(host)
"""
UNTIL_RELEASED = """
    if group != "data":
        while not (Path(os.environ["SHARED"]) / "go on").exists():
            time.sleep(0.02)
"""


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machines]]:
    """Makes the machines of a job of two groups."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHARED", str(tmp_path))
    made: list[Machines] = []
    prefix = f"127.{50 + os.getpid() % 20}.{next(_numbers) % 250}"

    def make(script: str, change: Callable = lambda plan: plan, **fields: object) -> Machines:
        fields = {"instance_groups": groups(dnn=2, data=1), **fields}
        made.append(Machines(tmp_path, job(tmp_path, script, **fields), prefix, change))
        return made[-1]

    yield make
    for each in made:
        each.close()


def members(path: str | Path) -> dict[str, str]:
    """Files of an archive, and what is in them; of a link where it leads."""
    with tarfile.open(path) as archive:
        return {
            each.name: each.linkname if each.issym() else archive.extractfile(each).read().decode()
            for each in archive
            if not each.isdir()
        }


@pytest.mark.parametrize("encrypt", [False, True])
def test_hosts_on_machines_of_their_own_make_one_run(machines, tmp_path: Path, encrypt: bool) -> None:
    made = machines(TRAIN + UNTIL_RELEASED, encrypt_inter_container_traffic=encrypt).start()
    assert made["algo-3"].wait() == 0, "a data host that is released early ends at once"
    assert not any(isinstance(event, RunFinished) for event in made.run.events())
    (tmp_path / "go on").touch()
    assert [made[host].wait() for host in ("algo-1", "algo-2")] == [0, 0]

    run, state = made.run, made.run.state()
    assert (state.status, state.cause, state.degraded) == (Status.COMPLETED, None, False), made.explain()
    assert {(line.stream.host, line.text) for line in run.logs("dnn/algo-2/0")} == {("algo-2", "here is algo-2")}
    assert {line.text for line in run.logs() if line.stream.name == "0"} == {f"here is algo-{n}" for n in (1, 2, 3)}
    assert {stream.host for stream in run.host_seconds()} == set(made.all)
    assert next(event.host for event in run.events() if isinstance(event, HostReleased)) == "algo-3"
    assert [each.status for each in state.transitions] == [
        SecondaryStatus.STARTING, SecondaryStatus.TRAINING, SecondaryStatus.UPLOADING, SecondaryStatus.COMPLETED,
    ]  # fmt: skip
    assert sum(isinstance(event, RunFinished) for event in run.events()) == 1
    assert not run.damage
    output = made.leader.paths.output
    hosts = {f"of-algo-{n}": f"algo-{n}" for n in (1, 2, 3)}
    assert members(output / "model.tar.gz") == {**hosts, "same": "same", "link": "same"}
    assert members(output / "output.tar.gz") == {f"notes-algo-{n}": f"algo-{n}" for n in (1, 2, 3)}
    assert not any(isinstance(event, HostNotCollected) for event in run.events())

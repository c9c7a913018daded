"""Every host of a run has a supervisor of its own on its own machine: one run, one record, one model."""

from __future__ import annotations

import contextlib
import itertools
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from cut_connections import Cuts, cutting
from effort import SOAK
from machines_of_a_run import Machines, groups, job

from flaky_s3 import FlakyS3, flaky
from headrace.instance.launch_plan import channel_dir
from headrace.private_folders import write_atomically
from headrace.runs import CauseKind, Run, Status
from headrace.runs.events import (
    FeedReady,
    HostLost,
    HostNotCollected,
    HostReleased,
    HostStarted,
    InstancesStarted,
    RunFinished,
    SecondaryStatus,
)
from held_install import hold_install
from objectstore import ObjectStore
from patience import allowed, until

_numbers = itertools.count(1)
WITHOUT_TORCH = {"PYTHONPATH": str(Path(__file__).parent.parent / "engines/without_torch")}

TRAIN = """
    import os, time
    from pathlib import Path
    host, group = os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"]
    print("here is", host, flush=True)
    model = Path(os.environ["SM_MODEL_DIR"])
    (model / f"of-{host}").write_text(host)
    (model / "same").write_text("same")
    (model / f"link-{host}").symlink_to("same")
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


@pytest.fixture
def cut() -> Iterator[Callable[[Machines], Cuts]]:
    """Puts something that cuts connections between the leader and the others."""
    with contextlib.ExitStack() as stack:

        def make(made: Machines) -> Cuts:
            leader = made.plan.host(made.plan.leader).address
            proxy = stack.enter_context(cutting((leader, made.plan.ports.control)))
            for machine in made.all.values():
                if machine is not made.leader:
                    plan = msgspec.structs.replace(
                        made.plan, ports=msgspec.structs.replace(made.plan.ports, control=proxy.port)
                    )
                    write_atomically(machine.paths.plan, msgspec.json.encode(plan))
            return proxy

        yield make


def members(path: str | Path) -> dict[str, str]:
    """Files of an archive, and what is in them; of a link where it leads."""
    with tarfile.open(path) as archive:
        return {
            each.name: each.linkname if each.issym() else archive.extractfile(each).read().decode()
            for each in archive
            if not each.isdir()
        }


@pytest.mark.promise("own-engine", "hosts on machines of their own make one run: one record, one model, one stop")
def test_hosts_on_machines_of_their_own_make_one_run_over_encrypted_connections(machines, tmp_path: Path) -> None:
    made = machines(TRAIN + UNTIL_RELEASED, encrypt_inter_container_traffic=True).start()
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
    links = {f"link-algo-{n}": "same" for n in (1, 2, 3)}
    assert members(output / "model.tar.gz") == {**hosts, **links, "same": "same"}
    assert members(output / "output.tar.gz") == {f"notes-algo-{n}": f"algo-{n}" for n in (1, 2, 3)}
    assert not any(isinstance(event, HostNotCollected) for event in run.events())


@pytest.mark.promise("own-engine", "hosts on machines of their own make one run: one record, one model, one stop")
def test_channels_and_checkpoints_are_each_hosts_own_and_another_attempt_has_those_of_all(
    machines, s3: ObjectStore, tmp_path: Path
) -> None:
    kept_at = tmp_path / "kept"  # in the long run in a bucket, as the channel
    for name in "abcd":
        s3.put(f"data/{name}", name.encode())
    script = """
    import os, sys, time
    from pathlib import Path
    host = os.environ["SM_CURRENT_HOST"]
    kept = Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
    print("channel", *sorted(os.listdir(os.environ["SM_CHANNEL_TRAINING"])), flush=True)
    print("kept", *sorted(os.listdir(kept)), flush=True)
    if not (kept / host).exists():
        (kept / host).write_text(host)
        (kept / "both").write_text(host)
        (kept / "same").write_text("same")
        if host == "algo-2":
            sys.exit(3)
        time.sleep(60)
    """
    made = machines(
        script,
        instance_groups=groups(dnn=2),
        inputs={"training": {"s3_data": s3.uri("data"), "distribution": "ShardedByS3Key"}},
        checkpoint_s3_uri=s3.uri("kept") if SOAK else str(kept_at),
        retry={"attempts": 1, "on": "any"},
    ).start()
    assert [machine.wait() for machine in made.all.values()] == [0, 0], made.explain()
    run, state = made.run, made.run.state()
    assert (state.status, state.attempt) == (Status.COMPLETED, 2)
    said = {host: [line.text for line in run.logs(f"dnn/{host}/0")] for host in made.all}
    channels = {host: {line for line in lines if line.startswith("channel")} for host, lines in said.items()}
    assert channels == {"algo-1": {"channel a c"}, "algo-2": {"channel b d"}}
    kept = {host: [line for line in lines if line.startswith("kept")] for host, lines in said.items()}
    assert set(map(tuple, kept.values())) == {("kept", "kept algo-1 algo-2 both same")}
    names = ["algo-1", "algo-2", "both", "same"]
    stored_keys = s3.listed() if SOAK else [f"kept/{path.name}" for path in kept_at.iterdir()]
    assert sorted(key for key in stored_keys if key.startswith("kept/")) == [f"kept/{name}" for name in names]
    (stored,) = run.artefacts
    assert (stored.name, stored.part, stored.clash_count) == ("checkpoints", "", 1)
    (clash,) = stored.clashes  # of the first attempt: the second one has restored what was kept
    assert (clash.path, {clash.kept, *clash.dropped}) == ("both", set(made.all))


@pytest.mark.promise(
    "own-engine", "when connections between supervisors break, nothing of the record is lost or doubled"
)
def test_a_rank_that_fails_on_another_machine_is_the_cause_and_no_line_is_lost_over_broken_connections(
    machines, cut: Callable[[Machines], object]
) -> None:
    script = """
    import os, sys, time
    for number in range(120):
        print("line", number, "x" * 200 if number % 50 else "y" * 20_000, flush=True)
        time.sleep(0.01)
    if os.environ["SM_CURRENT_HOST"] == "algo-2":
        print("so it goes", flush=True)
        sys.exit(7)
    time.sleep(60)
    """
    made = machines(script, instance_groups=groups(dnn=2))
    proxy = cut(made)
    made.start()
    assert made.leader.wait() == 1
    assert made["algo-2"].wait() == 0, "it has done its duty"
    state = made.run.state()
    assert state.status is Status.FAILED
    assert state.cause is not None
    assert (state.cause.place, state.cause.exit_code) == ("dnn/algo-2[0]", 7)
    assert state.cause.last_lines[-1] == "so it goes"
    assert proxy.cuts > 2
    for name in ("logs/dnn/algo-2/0.log", "events/algo-2.jsonl", "metrics/dnn/algo-2/host.jsonl"):
        assert (made.leader.paths.root / name).read_bytes() == (made["algo-2"].paths.root / name).read_bytes()


FED = {
    "instance_groups": groups(dnn=1, data=2),
    "data_service": {"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": ["data"]},
    "environment": WITHOUT_TORCH,
}
WAIT = """
    import os, time
    print("running", flush=True)
    while not os.path.exists(os.environ["SHARED"] + "/go on"):
        time.sleep(0.02)
"""


def serving(made: Machines) -> bool:
    events = made.run.events()
    return sum(isinstance(event, FeedReady) for event in events) == 2 and bool(made.said("running")())


@pytest.mark.promise("own-engine", "a lost machine is replaced by an empty one; without one the others end")
@pytest.mark.parametrize("power_off", [True, *([False] if SOAK else [])])
def test_the_job_goes_on_without_a_data_host_that_is_lost(machines, tmp_path: Path, power_off: bool) -> None:
    made = machines(WAIT, **FED).start()
    until(lambda: serving(made), 30, "data workers")
    until(lambda: "algo-3" in {stream.host for stream in made.run.streams()}, 30, "the log of the data host")
    if power_off:
        made["algo-3"].power_off()
    else:
        made["algo-3"].signal()
        assert made["algo-3"].wait() == 1
    until(lambda: any(isinstance(event, HostLost | HostReleased) for event in made.run.events()), 15, "the loss")
    (tmp_path / "go on").touch()
    assert [made[host].wait() for host in ("algo-1", "algo-2")] == [0, 0], made.explain()
    state = made.run.state()
    assert (state.status, state.degraded) == (Status.COMPLETED, True), made.explain()
    missing = [event.host for event in made.run.events() if isinstance(event, HostNotCollected)]
    assert missing == (["algo-3"] if power_off else []), "what came before it was lost, or all"
    assert "algo-3" in {stream.host for stream in made.run.streams()}


@pytest.mark.promise("own-engine", "a lost machine is replaced by an empty one; without one the others end")
@pytest.mark.parametrize("power_off", [False, *([True] if SOAK else [])])
def test_without_the_leader_the_others_end_and_its_platform_is_the_cause(machines, power_off: bool) -> None:
    made = machines(WAIT, instance_groups=groups(dnn=2)).start()
    until(lambda: made["algo-2"].paths.root.joinpath("logs/dnn/algo-2/0.log").exists(), 20, "the programs")
    if power_off:
        made.leader.power_off()
        assert made["algo-2"].wait(40) == 1
        return
    made.leader.signal()
    assert made.leader.wait() == 1
    assert made["algo-2"].wait() == 0
    state = made.run.state()
    assert (state.status, state.cause.kind, state.cause.infrastructure) == (Status.FAILED, CauseKind.HOST_LOST, True)


PARTS = {
    "training": SecondaryStatus.TRAINING,
    "install": SecondaryStatus.STARTING,
    "download": SecondaryStatus.DOWNLOADING,
    "upload": SecondaryStatus.UPLOADING,
}


@pytest.mark.promise("own-engine", "hosts on machines of their own make one run: one record, one model, one stop")
@pytest.mark.parametrize("part", PARTS if SOAK else ["training"])
def test_a_stop_by_a_person_works_in_every_part_of_the_run(
    machines, tmp_path: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    with flaky(s3.endpoint) as bucket:
        bucket.hung = True
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
        fields: dict[str, object] = {"instance_groups": groups(dnn=2)}
        script = WAIT
        if part == "install":
            hold_install(tmp_path / "code", tmp_path)
        elif part == "download":
            fields["inputs"] = {"training": s3.uri("data")}
        elif part == "upload":
            fields["output_path"] = s3.uri("out")
            script = TRAIN
        made = machines(script, **fields).start()
        until(lambda: has_begun(made, part, tmp_path, bucket), 30, part)
        asked = made.leader.ask("stop", *(["--now"] if part in {"download", "upload"} else []))
        assert asked.returncode == 0, asked.stderr
        assert made.leader.wait() == 1
        made["algo-2"].wait()
        state = made.run.state()
        assert (state.status, state.cause.kind) == (Status.STOPPED, CauseKind.STOPPED), made.explain()
        assert PARTS[part] in {each.status for each in state.transitions}


def has_begun(made: Machines, part: str, folder: Path, bucket: FlakyS3) -> bool:
    """Whether a part of the run is where it does not end: the leader is in it, and so is the other machine."""
    if part == "install":
        return (folder / "begun").exists()
    if part == "training":
        return len({line.stream.host for line in made.run.logs() if line.text == "running"}) == 2
    return made.run.state().secondary_status is PARTS[part] and bucket.requests.total() > (part == "download")


if SOAK:  # in every run: a stop of a job that trains, above

    def test_a_host_whose_agent_has_not_registered_when_the_run_is_stopped_ends_at_once(machines) -> None:
        made = machines(WAIT, instance_groups=groups(dnn=2))
        late = made["algo-2"]
        ports = msgspec.structs.replace(made.plan.ports, control=made.plan.ports.feed)  # where nobody answers its agent
        text = msgspec.json.encode(msgspec.structs.replace(made.plan, ports=ports))
        write_atomically(channel_dir(late.tree) / "plan.json", text)
        made.start()

        def agents() -> set[str]:
            return {
                each.host for machine in made.all.values() for each in Run(machine.paths).events() if is_start(each)
            }

        until(lambda: agents() == {"algo-1", "algo-2"}, 30, "both agents")
        began = time.monotonic()
        assert made.leader.ask("stop").returncode == 0
        assert made.leader.wait() == 1
        assert late.wait() == 0
        assert time.monotonic() - began < allowed(10), "an agent with orders has 15 s and its grace"
        assert made.run.state().status is Status.STOPPED, made.explain()


def is_start(event: object) -> bool:
    return isinstance(event, HostStarted)


COUNT = """
    import os, sys, time
    from pathlib import Path
    here = Path(os.environ["SHARED"])
    attempts = len(list(here.glob("attempt-*-" + os.environ["SM_CURRENT_HOST"])))
    (here / f"attempt-{attempts}-{os.environ['SM_CURRENT_HOST']}").touch()
    print("attempt", attempts + 1, flush=True)
    while not attempts:
        time.sleep(0.05)
"""
RETRY = {"attempts": 1}


@pytest.mark.promise("engines", "another attempt, on kubernetes")
@pytest.mark.promise("own-engine", "a lost machine is replaced by an empty one; without one the others end")
@pytest.mark.parametrize("empty", [True, *([False] if SOAK else [])])
def test_a_machine_that_takes_the_place_of_a_lost_one_joins_the_next_attempt(machines, empty: bool) -> None:
    made = machines(COUNT, instance_groups=groups(dnn=2), retry=RETRY).start()
    lines = lambda host: [line.text for line in made.run.logs(f"dnn/{host}/0")]  # noqa: E731
    until(lambda: {"algo-1", "algo-2"} <= {line.stream.host for line in made.run.logs() if line.text == "attempt 1"})
    made["algo-2"].power_off()
    if empty:
        made["algo-2"].set_up()
    made["algo-2"].start()
    assert [machine.wait() for machine in made.all.values()] == [0, 0], made.explain()
    state = made.run.state()
    assert (state.status, state.attempt) == (Status.COMPLETED, 2)
    assert [lines(host) for host in made.all] == [["attempt 1", "attempt 2"]] * 2
    assert not made.run.damage
    started = [event for event in made.run.events() if isinstance(event, HostStarted)]
    assert [event.host for event in started].count("algo-2") == 2


MAKE = """
    import os, time
    from pathlib import Path
    host = os.environ["SM_CURRENT_HOST"]
    mark = Path(os.environ["SHARED"], "mark-" + host)
    attempt = 1 + mark.exists()
    mark.touch()
    Path(os.environ["SM_MODEL_DIR"], f"{host}-{attempt}").write_text("made")
    print("attempt", attempt, flush=True)
    while attempt == 1:
        time.sleep(0.05)
"""


def test_the_model_has_what_the_second_machine_of_a_host_made_and_nothing_of_the_first_that_was_taken_away(
    machines,
) -> None:
    made = machines(MAKE, instance_groups=groups(dnn=2), retry=RETRY).start()
    until(lambda: {line.stream.host for line in made.run.logs() if line.text == "attempt 1"} == {"algo-1", "algo-2"})
    made["algo-2"].signal()
    assert made["algo-2"].wait() == 1
    made["algo-2"].set_up()
    made["algo-2"].start()
    assert [machine.wait() for machine in made.all.values()] == [0, 0], made.explain()
    assert (made.run.status, made.run.state().attempt) == (Status.COMPLETED, 2)
    assert set(members(made.leader.paths.output / "model.tar.gz")) == {"algo-1-2", "algo-2-2"}, made.explain()


@pytest.mark.promise("own-engine", "a lost machine is replaced by an empty one; without one the others end")
@pytest.mark.parametrize("power_off", [False, *([True] if SOAK else [])])
def test_a_leader_that_takes_the_place_of_a_lost_one_brings_the_record_back_and_goes_on(
    machines, s3: ObjectStore, power_off: bool
) -> None:
    record = {"uri": s3.uri("runs"), "interval": 1}
    made = machines(COUNT, instance_groups=groups(dnn=2), retry=RETRY, record=record).start()
    until(lambda: stored(s3, b"attempt 1") == 2, 20, "the first attempt in the store")
    if power_off:
        made.leader.power_off()
    else:
        made.leader.signal()
        assert made.leader.wait() == 1
        assert not made.run.finished, "the next leader has the last word"
    made.leader.set_up()
    made.leader.start()
    assert [machine.wait() for machine in made.all.values()] == [0, 0], made.explain()
    run, state = made.run, made.run.state()
    assert (state.status, state.attempt) == (Status.COMPLETED, 2)
    assert [[line.text for line in run.logs(f"dnn/{host}/0")] for host in made.all] == [["attempt 1", "attempt 2"]] * 2
    assert not run.damage
    assert sum(isinstance(event, InstancesStarted) for event in run.events()) == 1
    assert sum(isinstance(event, RunFinished) for event in run.events()) == 1

    before = s3.listed()
    made.leader.set_up()
    made.leader.start()
    assert made.leader.wait() == 0, "of a run that has ended it only reports the end"
    assert sum(isinstance(event, RunFinished) for event in made.run.events()) == 1
    assert s3.listed() == before


if SOAK:  # in every run: a leader that takes the place of a lost one, above

    def test_a_leader_that_is_taken_away_while_it_prepares_is_replaced_in_the_next_attempt(
        machines, s3: ObjectStore, tmp_path: Path
    ) -> None:
        hold_install(tmp_path / "code", tmp_path)
        record = {"uri": s3.uri("runs"), "interval": 1}
        made = machines("import held; print('done')", instance_groups=groups(dnn=1), retry=RETRY, record=record).start()
        until((tmp_path / "begun").exists, 30, "pip")
        made.leader.signal()
        assert made.leader.wait() == 1
        assert not made.run.finished, "the next leader has the last word"
        (tmp_path / "hold").unlink()
        made.leader.set_up()
        made.leader.start()
        assert made.leader.wait() == 0, made.explain()
        state = made.run.state()
        assert (state.status, state.attempt) == (Status.COMPLETED, 2)
        reason = next(part.message for part in state.transitions if part.status is SecondaryStatus.RESTARTING)
        assert reason.startswith("Attempt 2 of 2, after: ")


def stored(s3: ObjectStore, text: bytes) -> int:
    """How often a text stands in the segments of a record."""
    return sum(s3.get(key).count(text) for key in s3.listed() if "/segments/" in key)

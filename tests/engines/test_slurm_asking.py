"""What is made of Slurm's answers, where a real cluster cannot show it: wrong places, other people's jobs, no answer.

Slurm's programs are scripts that print the files of a folder.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_slurm_lead import GROUPS
from test_slurm_lead import plan as make_plan

from headrace.engines import new_run
from headrace.engines.host_order import HostOrder, write_host_order
from headrace.engines.new_run import check_name
from headrace.engines.slurm import slurm_commands, slurm_engine, slurm_instances
from headrace.engines.slurm.handover import (
    NOT_KNOWN,
    Placement,
    SlurmTicket,
    read_placement,
    write_placement,
)
from headrace.engines.slurm.lead import LeadSignals, keep_job
from headrace.engines.slurm.slurm_commands import SlurmUnreachable
from headrace.engines.slurm.slurm_instances import SlurmInstances
from headrace.engines.slurm.slurm_job import plan_slurm_job
from headrace.engines.slurm.slurm_state import EndedComponent
from headrace.engines.ticket import read_ticket, write_ticket
from headrace.errors import EngineRefused, EngineUnreachable
from headrace.instance.launch_plan import Retry, plan_text
from headrace.job import Job
from headrace.runs import CauseKind, EventWriter, Run, RunPaths, Status, create_run, give_to_engine, runs_dir
from headrace.runs.events import AttemptStarted, RunFinished, SecondaryStatus, StatusChanged

PRINT = """\
#!/bin/sh
[ -e {folder}/slow ] && exec sleep 60
[ -e {folder}/{name}.fails ] && cat {folder}/{name}.fails >&2 && exit 1
"""
SCRIPTS = {
    "squeue": "cat {folder}/queue\nenv > {folder}/squeue.env\n",
    "scontrol": """case "$*" in
*config*) echo "ClusterName = alps"; cat {folder}/config ;;
*hostnames*) echo "$3" | tr , '\\n' ;;
*partition*) cat {folder}/partitions ;;
*"show node"*) cat {folder}/nodes ;;
*requeue*) echo "$*" >> {folder}/cancelled ;;
*) [ ! -e {folder}/forgotten ] || {{ cat {folder}/forgotten >&2; exit 1; }}; cat {folder}/shown ;;
esac
""",
    "scancel": 'echo "$*" >> {folder}/cancelled\n',
    "sbatch": "echo 7\n",
    "sacct": "cat {folder}/accounted\n",
}
INVALID = "slurm_load_jobs error: Invalid job id specified"


class Stage:
    """A run with a ticket, and what Slurm answers.

    Args:
        folder: of the answers.
        run: the run.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder = folder
        self.run = run

    def queue(self, state: str, comment: str = "", job: int = 7, nodes: str = "n1") -> None:
        name = comment or f"headrace:{self.run.id}"
        line = f"{job}|{state}|None|{nodes}|2026-11-22T13:05:10|2026-11-22T13:05:14|{name}\n"
        (self.folder / "queue").write_text(line)

    def ticket(self, job: int = 7, cluster: str = "alps", uid: int | None = None) -> None:
        write_ticket(self.run.paths, SlurmTicket(job, cluster, os.getuid() if uid is None else uid))

    def shown(self, state: str, comment: str = "", nodes: str = "n1", restarts: int = 0) -> None:
        words = f"JobId=7 JobState={state} Restarts={restarts} ExitCode=0:0 NodeList={nodes} "
        words += f"Comment={comment or f'headrace:{self.run.id}'}\n"
        (self.folder / "shown").write_text(words)

    def scontrol_fails_to_show(self) -> None:
        (self.folder / "forgotten").write_text(INVALID)

    def scontrol_fails(self, words: str) -> None:
        (self.folder / "scontrol.fails").write_text(words)

    @property
    def ends(self) -> list[Status]:
        return [event.status for event in self.run.events() if isinstance(event, RunFinished)]

    @property
    def cancelled(self) -> str:
        file = self.folder / "cancelled"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    answers = tmp_path / "answers"
    answers.mkdir()
    (answers / "queue").touch()
    (answers / "shown").touch()
    (answers / "config").write_text("AccountingStorageType   = accounting_storage/none\n")
    for name in ("accounted", "partitions", "nodes"):
        (answers / name).touch()
    for name, body in SCRIPTS.items():
        script = answers / name
        script.write_text((PRINT + body).format(folder=answers, name=name))
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{answers}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_engine, "_seen", {})
    paths = create_run("demo", "slurm", tmp_path / "runs")
    give_to_engine(paths)
    paths.engine.mkdir()
    return Stage(answers, Run(paths, alive=lambda _: True))


def test_a_run_is_its_job_by_the_comment_and_another_job_with_its_id_is_never_signalled(stage: Stage) -> None:
    stage.ticket()
    stage.queue("RUNNING", "headrace:another-run")
    for ask in (slurm_engine.ENGINE.refresh, slurm_engine.ENGINE.alive, slurm_engine.ENGINE.stop):
        with pytest.raises(SlurmUnreachable, match="its comment does not name the run"):
            ask(stage.run)
    assert (stage.ends, stage.cancelled) == ([], "")
    stage.queue("RUNNING")
    slurm_engine._seen.clear()
    assert slurm_engine.ENGINE.stop(stage.run)
    assert stage.cancelled == "--batch --signal=USR1 7\n"


def test_a_run_of_a_named_cluster_is_asked_for_and_stopped_there(stage: Stage) -> None:
    write_ticket(stage.run.paths, SlurmTicket(7, "alps", os.getuid(), "gpu-hall"))
    stage.queue("RUNNING")
    assert slurm_engine.ENGINE.stop(stage.run)
    assert stage.cancelled == "--clusters=gpu-hall --batch --signal=USR1 7\n"
    slurm_commands.cancel(8)
    assert stage.cancelled.endswith("\n8\n"), "what is asked elsewhere afterwards is not"


@pytest.mark.parametrize(("cluster", "uid"), [("other", None), ("alps", os.getuid() + 1)])
def test_another_cluster_or_user_says_nothing_about_a_run(stage: Stage, cluster: str, uid: int | None) -> None:
    stage.ticket(cluster=cluster, uid=uid)
    for ask in (slurm_engine.ENGINE.refresh, slurm_engine.ENGINE.alive, slurm_engine.ENGINE.stop):
        with pytest.raises(SlurmUnreachable, match=f"on the Slurm cluster {cluster}") as caught:
            ask(stage.run)
        assert "that cluster, as that user" in caught.value.hint
    assert (stage.ends, stage.cancelled) == ([], "")


def test_what_slurm_has_forgotten_has_failed_once_slurm_says_that_there_is_no_such_job(stage: Stage) -> None:
    stage.ticket()
    stage.scontrol_fails("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlurmUnreachable, match="Unable to contact"):
        slurm_engine.ENGINE.refresh(stage.run)
    (stage.folder / "scontrol.fails").unlink()
    stage.shown("RUNNING")
    slurm_engine.ENGINE.refresh(stage.run)
    assert stage.ends == [], "squeue and scontrol disagree"
    stage.shown("COMPLETED", "somebody else's")
    slurm_engine.ENGINE.refresh(stage.run)
    assert stage.ends == [Status.FAILED]
    cause = stage.run.cause
    assert cause is not None
    assert "knows nothing of job 7 any more" in cause.reason


ACCOUNTING = "AccountingStorageType   = accounting_storage/slurmdbd\n"


def forgotten(stage: Stage, state: str) -> None:
    """Has the controller forget the run's job, of which the accounting, if there is one, keeps this state."""
    stage.ticket()
    stage.scontrol_fails_to_show()
    line = f"7|{state}|0:0|n1|{os.getuid()}|{stage.run.header.job_name}|headrace:{stage.run.id}\n"
    (stage.folder / "accounted").write_text(line)


def test_how_a_forgotten_job_ended_comes_from_the_accounting_where_there_is_one(stage: Stage) -> None:
    forgotten(stage, "PREEMPTED")
    (stage.folder / "config").write_text(ACCOUNTING)
    (stage.folder / "sacct.fails").write_text("sacct: error: Problem talking to the database: Connection refused")
    with pytest.raises(SlurmUnreachable, match="Problem talking to the database"):
        slurm_engine.ENGINE.refresh(stage.run)
    assert stage.ends == [], "the accounting is asked again"
    (stage.folder / "sacct.fails").unlink()
    slurm_engine.ENGINE.refresh(stage.run)
    assert stage.ends == [Status.FAILED]
    cause = stage.run.cause
    assert cause is not None
    assert (cause.kind, str(cause)) == (CauseKind.PREEMPTED, "Slurm job 7 was preempted")


def test_without_accounting_sacct_is_not_asked(stage: Stage) -> None:
    forgotten(stage, "PREEMPTED")
    (stage.folder / "sacct.fails").write_text("sacct: error: Slurm accounting storage is disabled")
    slurm_engine.ENGINE.refresh(stage.run)
    cause = stage.run.cause
    assert cause is not None
    assert "knows nothing of job 7 any more" in str(cause)


def test_no_such_job_is_an_answer_and_every_other_failure_is_none(stage: Stage) -> None:
    stage.scontrol_fails(INVALID)
    assert slurm_commands.show(7) == ()
    stage.scontrol_fails("")
    with pytest.raises(SlurmUnreachable):
        slurm_commands.show(7)


def test_a_run_whose_submission_was_killed_before_its_ticket_is_found_and_can_be_stopped(stage: Stage) -> None:
    stage.ticket(NOT_KNOWN)
    assert slurm_engine.ENGINE.alive(stage.run), "it may be on its way"
    with pytest.raises(EngineRefused, match="no Slurm job yet"):
        slurm_engine.ENGINE.stop(stage.run)
    stage.queue("RUNNING", job=9)
    assert slurm_engine.ENGINE.alive(stage.run)
    assert slurm_engine.ENGINE.stop(stage.run)
    assert stage.cancelled == "--batch --signal=USR1 9\n"
    keep_job(stage.run.paths, 9)
    keep_job(stage.run.paths, 10)
    assert read_ticket(stage.run.paths, SlurmTicket) == SlurmTicket(9, "alps", os.getuid(), submitted=True), (
        "the first word"
    )


def test_a_job_that_was_submitted_a_moment_ago_is_not_taken_for_a_forgotten_one(stage: Stage) -> None:
    slurm_engine._queue(float("inf"))  # an empty queue, which is fresh enough for other runs
    stage.ticket()
    stage.queue("PENDING")
    assert slurm_engine.ENGINE.alive(stage.run)


def test_a_run_goes_on_until_its_record_has_the_end_though_slurm_has_its_job_no_more(stage: Stage) -> None:
    stage.ticket()
    stage.queue("FAILED")
    assert slurm_engine.ENGINE.alive(stage.run), "else who waits would go before the end is written"
    stage.shown("FAILED")
    slurm_engine.ENGINE.refresh(stage.run)
    assert not slurm_engine.ENGINE.alive(stage.run)
    slurm_engine._seen.clear()
    stage.queue("RUNNING")
    assert slurm_engine.ENGINE.alive(stage.run), "its lead stores the rest of the record"


@pytest.fixture
def led(stage: Stage) -> Stage:
    """Its run is led on n1, and may have two attempts."""
    plan = msgspec.structs.replace(make_plan(), retry=Retry(1))
    stage.run.paths.plan.write_text(plan_text(plan))
    stage.ticket()
    write_placement(stage.run.paths, Placement(7, ("n1", "n2", "n3")))
    return stage


def test_a_job_that_goes_on_without_the_leaders_node_is_queued_again_and_after_the_last_attempt_ended(
    led: Stage,
) -> None:
    led.queue("RUNNING", nodes="n1,n2")
    led.shown("RUNNING", nodes="n1,n2")
    slurm_engine.ENGINE.refresh(led.run)
    assert (led.ends, led.cancelled) == ([], ""), "its lead is there"
    led.queue("RUNNING", nodes="n2")
    led.shown("RUNNING", nodes="n2")
    slurm_engine._seen.clear()
    slurm_engine.ENGINE.refresh(led.run)
    assert (led.ends, led.cancelled) == ([], "requeue 7\n")
    led.shown("RUNNING", nodes="n2", restarts=1)
    slurm_engine.ENGINE.refresh(led.run)
    assert led.cancelled == "requeue 7\n", "it runs again, and its new lead has not yet said where"
    with EventWriter(led.run.paths.events("engine")) as events:
        events.write(AttemptStarted(t=time.time(), number=2))
    write_placement(led.run.paths, Placement(7, ("n4", "n2", "n3"), restarts=1))
    slurm_engine.ENGINE.refresh(led.run)
    assert (led.ends, led.cancelled) == ([Status.FAILED], "requeue 7\n7\n")
    cause = led.run.cause
    assert cause is not None
    assert (cause.kind, cause.host, cause.infrastructure) == (CauseKind.HOST_LOST, "algo-3", True)


def test_a_job_that_has_lost_the_leaders_node_and_cannot_be_queued_again_is_ended(led: Stage) -> None:
    script = led.folder / "scontrol"
    refused = "*requeue*) echo 'Job cannot be requeued' >&2; exit 1 ;;\n*hostnames*)"
    script.write_text(script.read_text().replace("*hostnames*)", refused))
    led.queue("RUNNING", nodes="n2")
    led.shown("RUNNING", nodes="n2")
    slurm_engine.ENGINE.refresh(led.run)
    assert (led.ends, led.cancelled) == ([Status.FAILED], "7\n")


@pytest.fixture
def instances(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmInstances]:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm_instances, "ASK_SECONDS", 0.3)
    write_host_order(stage.run.paths, HostOrder(python="python"))
    (stage.run.paths.engine / "slurm.log").touch()
    found = SlurmInstances(make_plan(), stage.run.paths, EventWriter(stage.run.paths.events("engine")))
    yield found
    found.close()


def test_a_stop_by_slurm_is_passed_on_before_slurm_is_asked_for_the_cause(
    stage: Stage, instances: SlurmInstances, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = LeadSignals(stage.run.paths, 7, 120.0)  # asks for KillWait, which this Slurm does not have
    stage.shown("PREEMPTED")
    passed_on: list[object] = []
    show = slurm_commands.show

    def noted(*given: Any) -> tuple[EndedComponent, ...]:
        assert passed_on, "first the coordinator is asked"
        return show(*given)

    class Coordinator:
        verdict = None
        command = passed_on.append
        close = staticmethod(lambda: None)

    monkeypatch.setattr(slurm_commands, "show", noted)
    monkeypatch.setattr(instances._end, "_authority", Coordinator())
    order = signals.orders[signal.SIGTERM](False)
    assert passed_on == [], "the supervisor's loop does not wait for Slurm"
    instances.stop(order)
    assert passed_on == [order]
    status, cause = instances.verdict()
    assert (status, str(cause)) == (Status.FAILED, "Slurm job 7 was preempted")


def test_a_stop_by_slurm_does_not_wait_long_for_a_controller_that_does_not_answer(
    stage: Stage, instances: SlurmInstances
) -> None:
    order = LeadSignals(stage.run.paths, 7, 120.0).orders[signal.SIGTERM](False)
    (stage.folder / "slow").touch()
    before = time.monotonic()
    instances.stop(order)
    assert time.monotonic() - before < 30
    status, cause = instances.verdict()
    assert (status, cause.infrastructure if cause else None) == (Status.FAILED, True)
    assert "was ended by Slurm" in str(cause)


def test_slurm_is_asked_again_why_it_ended_the_job_when_it_did_not_answer_at_first(
    stage: Stage, instances: SlurmInstances
) -> None:
    order = LeadSignals(stage.run.paths, 7, 120.0).orders[signal.SIGTERM](False)
    (stage.folder / "slow").touch()
    instances.stop(order)
    (stage.folder / "slow").unlink()
    stage.shown("PREEMPTED")
    status, cause = instances.verdict()
    assert (status, str(cause)) == (Status.FAILED, "Slurm job 7 was preempted")
    assert instances.needs_others(), "another lead goes on: this one must not say that the run has failed"


def test_the_nodes_that_a_lead_has_written_are_not_lost_when_sbatch_returns_after_it_began(stage: Stage) -> None:
    stage.ticket(NOT_KNOWN)
    keep_job(stage.run.paths, 7)
    write_placement(stage.run.paths, Placement(7, ("n1",)))
    stage.ticket(7)  # the submitting process, only now
    assert read_placement(stage.run.paths).nodes == ("n1",)


def test_of_two_starts_with_one_name_one_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    job = Job("twice", source_dir="code", entry_point="train.py", instance_groups=GROUPS, base_path=str(tmp_path))
    planned = plan_slurm_job(job, (), RunPaths(tmp_path), "python")
    monkeypatch.setattr(slurm_engine.ENGINE, "check", lambda job: planned)  # both have passed it
    monkeypatch.setattr(slurm_engine.ENGINE, "submit", lambda *_: False)
    alone = []

    def checked(name: str, engine: str) -> None:
        directory = os.open(runs_dir(), os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(directory)
        alone.append(name)
        check_name(name, engine)

    monkeypatch.setattr(new_run, "check_name", checked)
    first = slurm_engine.ENGINE.start(job)
    with pytest.raises(EngineRefused, match=f"already running: {first.id}"):
        slurm_engine.ENGINE.start(job)
    assert alone == ["twice", "twice"]


def test_a_ticket_that_cannot_be_read_says_nothing_about_its_run(stage: Stage) -> None:
    (stage.run.paths.engine / "ticket.json").write_bytes(msgspec.json.encode({"job_id": 7}))
    with pytest.raises(EngineUnreachable, match="cannot be read"):
        slurm_engine.ENGINE.refresh(stage.run)


def test_variables_that_would_have_slurm_ask_elsewhere_are_refused_or_not_passed_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    monkeypatch.setenv("SQUEUE_PARTITION", "elsewhere")
    slurm_commands.queue()
    assert not {"SLURM_CLUSTERS", "SQUEUE_PARTITION"} & {
        line.partition("=")[0] for line in (stage.folder / "squeue.env").read_text().splitlines()
    }
    with pytest.raises(EngineRefused, match="SLURM_CLUSTERS is other"):
        slurm_commands.check_programs()


def test_ctrl_c_in_a_terminal_does_not_reach_slurms_programs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    own = stage.folder.parent / "own"
    own.mkdir()
    (own / "sbatch").write_text("#!/bin/sh\nread -r _ _ _ _ group _ < /proc/self/stat\necho $group\n")
    (own / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(own), prepend=os.pathsep)
    assert slurm_commands.submit(stage.folder / "job.sbatch") != os.getpgrp(), (
        "it is no process of the terminal's group"
    )


def test_a_suspended_job_is_shown_as_such_and_goes_on_and_a_stop_of_it_cancels_it(stage: Stage) -> None:
    stage.ticket()
    with EventWriter(stage.run.paths.events("engine")) as events:
        events.write(StatusChanged(t=time.time(), status=SecondaryStatus.TRAINING, message="Training in progress"))
    stage.queue("SUSPENDED")
    slurm_engine.ENGINE.refresh(stage.run)
    slurm_engine.ENGINE.refresh(stage.run)
    told = [(part.status, part.message) for part in stage.run.state().transitions]
    assert told[1:] == [(SecondaryStatus.INTERRUPTED, "Slurm job 7 is suspended")]
    stage.queue("RUNNING")
    slurm_engine._seen.clear()
    slurm_engine.ENGINE.refresh(stage.run)
    slurm_engine.ENGINE.refresh(stage.run)
    told = [(part.status, part.message) for part in stage.run.state().transitions]
    assert told[2:] == [(SecondaryStatus.TRAINING, "Slurm job 7 goes on; it was suspended")]
    stage.queue("SUSPENDED")
    slurm_engine._seen.clear()
    assert slurm_engine.ENGINE.stop(stage.run)
    assert stage.cancelled == "7\n"
    order = LeadSignals(stage.run.paths, 7, 120.0).orders[signal.SIGTERM](False)
    assert (order.kind, order.failed) == (CauseKind.STOPPED.value, False), (
        "its lead, if it gets to it, knows who it was"
    )
    line = "7|CANCELLED|None|n1|2026-11-22T13:05:10|2026-11-22T13:05:14|headrace:"  # and if it does not
    (stage.folder / "queue").write_text(f"{line}{stage.run.id}\n")
    stage.shown("CANCELLED")
    slurm_engine._seen.clear()
    slurm_engine.ENGINE.refresh(stage.run)
    assert (stage.ends, str(stage.run.cause)) == ([Status.STOPPED], "stopped by the user")

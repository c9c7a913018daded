"""What sbatch answers late, oddly or not at all: no record goes while there may be a job, and no job comes twice.

Slurm's programs are scripts, see `test_slurm_asking`.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from test_slurm_asking import Stage, stage
from test_slurm_lead import GROUPS

from headrace.engines.slurm import slurm_commands, slurm_engine
from headrace.engines.slurm.handover import NOT_KNOWN, SlurmTicket, read_stop_request
from headrace.engines.ticket import read_ticket
from headrace.errors import EngineRefused, NameInUse
from headrace.job import Job
from headrace.runs import Run, Status, runs_dir
from headrace.runs.events import SecondaryStatus, StatusChanged
from headrace.runs.store import list_paths_of

__all__ = ["stage"]
# Puts the job into the queue, with the comment that its script names.
TAKE = """run=$(basename "$(dirname "$(dirname "$2")")")
echo "7|PENDING|Resources||N/A|N/A|headrace:$run" > {folder}/queue
"""
TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1\n"


class Submitting:
    """Jobs that are submitted to a Slurm whose sbatch does as it is told.

    Args:
        stage: the scripts.
        folder: of the code.
    """

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.folder = folder

    def sbatch(self, body: str) -> None:
        script = self.stage.folder / "sbatch"
        script.write_text("#!/bin/sh\n" + body.replace("{folder}", str(self.stage.folder)))
        script.chmod(0o755)

    def start(self) -> Run:
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").touch()
        job = Job("late", source_dir="code", entry_point="train.py", instance_groups=GROUPS, base_path=str(self.folder))
        return Run(slurm_engine.ENGINE.start(job, detach=True).paths, alive=lambda _: True)

    def runs(self) -> list[Run]:
        return [Run(paths, alive=lambda _: True) for paths in list_paths_of("late")]


@pytest.fixture
def submitting(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submitting:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(slurm_engine, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(slurm_engine, "SETTLE_EVERY", 0.1)
    shutil.rmtree(runs_dir(), ignore_errors=True)
    return Submitting(stage, tmp_path)


TAKEN = {
    "too late": TAKE + "exec sleep 60\n",
    "the answer was lost": TAKE + TIMED_OUT,
    "killed": TAKE + "kill -9 $$\n",
    "a banner in place of the id": TAKE + "echo 'Welcome to the cluster'\n",
    "a banner and the id": "echo 'Welcome 2 you'; echo 7; echo 'Bye'\n",
}


@pytest.mark.promise("slurm", "on Slurm no record is deleted while there may be a job of it")
@pytest.mark.parametrize("answer", TAKEN)
def test_a_job_that_slurm_has_taken_is_the_runs_whatever_sbatch_says(
    answer: str, submitting: Submitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_commands, "SECONDS", 2.0)
    submitting.sbatch(TAKEN[answer])
    run = submitting.start()
    assert read_ticket(run.paths, SlurmTicket).job_id == 7
    assert [each.id for each in submitting.runs()] == [run.id]


@pytest.mark.promise("slurm", "on Slurm no record is deleted while there may be a job of it")
def test_a_job_of_which_nothing_is_known_keeps_its_run_and_comes_later_or_never(
    submitting: Submitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitting.sbatch(TIMED_OUT)
    run = submitting.start()
    assert read_ticket(run.paths, SlurmTicket).job_id == NOT_KNOWN
    said = [event for event in run.events() if isinstance(event, StatusChanged)]
    assert [event.status for event in said] == [SecondaryStatus.PENDING]
    assert "not known yet whether Slurm has taken the job" in said[0].message
    assert "Socket timed out" in said[0].message
    with pytest.raises(NameInUse):
        submitting.start()
    slurm_engine.ENGINE.refresh(run)
    assert slurm_engine.ENGINE.alive(run)
    assert not run.finished
    # later: it is there after all
    submitting.stage.run = run
    submitting.stage.queue("PENDING", job=9, nodes="")
    slurm_engine._seen.clear()
    assert slurm_engine.ENGINE.stop(run)
    assert "--state=PENDING 9" in submitting.stage.cancelled


def test_a_job_that_never_came_is_a_failure_of_the_infrastructure(
    submitting: Submitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitting.sbatch(TIMED_OUT)
    run = submitting.start()
    monkeypatch.setattr(slurm_engine.SlurmTicket, "SUBMIT_SECONDS", 0.0)
    slurm_engine._seen.clear()
    slurm_engine.ENGINE.refresh(run)
    cause = run.cause
    assert cause is not None
    assert (run.status, cause.infrastructure) == (Status.FAILED, True)
    assert "Slurm has no job of this run" in str(cause)


BUSY = "echo 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2; exec sleep 60\n"
REFUSED = {
    "MaxJobCount": (BUSY, "temporarily unable to accept job"),
    "a partition that is not there": ("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1\n", "invalid"),
    "nobody listens": (
        "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2\n"
        "exit 1\n",
        "Unable to contact",
    ),
}


@pytest.mark.parametrize("answer", REFUSED)
def test_of_a_job_that_slurm_has_refused_nothing_is_left_and_its_reason_is_told(
    answer: str, submitting: Submitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_commands, "SECONDS", 2.0)
    body, words = REFUSED[answer]
    submitting.sbatch(body)
    with pytest.raises(EngineRefused, match=words):
        submitting.start()
    assert submitting.runs() == []


@pytest.mark.parametrize("known", [True, False], ids=["a known job", "one that is not known yet"])
def test_ctrl_c_while_a_job_is_submitted_stops_it_and_keeps_its_record(known: bool, submitting: Submitting) -> None:
    submitting.sbatch("kill -INT $PPID; sleep 0.2\n" + (TAKE + "echo 7\n" if known else TIMED_OUT))
    with pytest.raises(KeyboardInterrupt):
        submitting.start()
    (run,) = submitting.runs()
    assert read_stop_request(run.paths) is not None
    if not known:  # it comes later: whoever looks at it stops it
        submitting.stage.run = run
        submitting.stage.queue("PENDING", nodes="")
        slurm_engine._seen.clear()
        slurm_engine.ENGINE.refresh(run)
    assert "--state=PENDING 7" in submitting.stage.cancelled
    assert run.status is Status.STOPPED


def test_a_job_whose_comment_the_cluster_has_rewritten_is_known_by_its_id_and_its_script(
    submitting: Submitting,
) -> None:
    submitting.sbatch("echo 7\n")
    run = submitting.start()
    submitting.stage.run = run
    submitting.stage.queue("RUNNING", comment="project=12")
    shown = submitting.stage.folder / "shown"
    shown.write_text("JobId=7 JobState=RUNNING\n   Command=/home/other/job.sbatch\n   WorkDir=/home\n")
    with pytest.raises(EngineRefused, match="its comment does not name the run"):
        slurm_engine.ENGINE.stop(run)
    shown.write_text(f"JobId=7 JobState=RUNNING\n   Command={run.paths.engine / 'job.sbatch'}\n   WorkDir=/home\n")
    assert slurm_engine.ENGINE.stop(run)
    assert submitting.stage.cancelled == "--batch --signal=USR1 7\n"


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [("1-00:00:00", 1440), ("UNLIMITED", 1452), ("2-00:00:00", 1452), ("12:00:00", 1452)],  # the last one is refused
)
def test_what_is_asked_for_beyond_max_run_bends_to_the_limit_of_the_partition(
    limit: str, minutes: int, submitting: Submitting
) -> None:
    row = f"PartitionName=data AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime={limit} MinNodes=0 State=UP\n"
    (submitting.stage.folder / "partitions").write_text(row)
    submitting.sbatch("echo 7\n")
    script = (submitting.start().paths.engine / "job.sbatch").read_text()
    assert f"--time={minutes} " in script


def test_a_job_that_asks_for_more_time_than_there_is_is_told_what_its_time_is_made_of(submitting: Submitting) -> None:
    words = "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)"
    submitting.sbatch(f"echo 'sbatch: error: {words}' >&2; exit 1\n")
    with pytest.raises(EngineRefused, match="exceeds some limit") as caught:
        submitting.start()
    assert "max_run, time_margin and stop_grace together" in caught.value.hint


# Options, and how their answers are read, by sbatch(1), srun(1), salloc(1), squeue(1) and scancel(1).
OVERRIDING = (
    *("SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_REQUEUE", "SBATCH_NO_REQUEUE", "SBATCH_JOB_NAME", "SBATCH_WAIT"),
    *("SBATCH_ARRAY_INX", "SBATCH_EXPORT", "SBATCH_OPEN_MODE", "SBATCH_EXCLUSIVE", "SBATCH_SIGNAL", "SBATCH_COMMENT"),
    *("SBATCH_GRES", "SBATCH_MEM_PER_NODE", "SBATCH_OUTPUT", "SBATCH_NO_KILL", "SBATCH_GET_USER_ENV", "SLURM_HINT"),
    *("SRUN_EXPORT_ENV", "SRUN_CONTAINER", "SLURM_PARTITION", "SLURM_NTASKS", "SLURM_WAIT", "SLURM_TIME_FORMAT"),
    *("SLURM_KILL_BAD_EXIT", "SALLOC_PARTITION", "SQUEUE_STATES", "SQUEUE_FORMAT", "SCANCEL_INTERACTIVE"),
)


@pytest.mark.promise("slurm", "on Slurm the shell's `SBATCH_*` and `SLURM_*` change nothing that a job asks for")
def test_variables_of_the_shell_change_nothing_that_a_job_asks_for(
    submitting: Submitting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in OVERRIDING:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")  # where Slurm is, not what a job asks for
    submitting.sbatch("env > {folder}/sbatch.env; echo 7\n")
    with caplog.at_level(logging.WARNING):
        run = submitting.start()
    slurm_commands.queue()
    for program in ("sbatch", "squeue"):
        lines = (submitting.stage.folder / f"{program}.env").read_text().splitlines()
        names = {line.partition("=")[0] for line in lines}
        assert names & set(OVERRIDING) == set()
        assert "SLURM_CONF" in names
    kept = (run.paths.engine / "environment.json").read_text()
    assert [name for name in OVERRIDING if f'"{name}"' in kept and not name.startswith(("SQUEUE", "SCANCEL"))] == []
    assert "SBATCH_PARTITION" in caplog.text, "what is left out is named"
    assert os.environ["SBATCH_PARTITION"] == "1"

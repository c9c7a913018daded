"""What is read from Slurm's text formats: lines that Slurm 22.05.8 and 24.11.5 printed, and what follows from them."""

from __future__ import annotations

import time

import pytest

from headrace.engines.slurm.slurm_state import (
    JobOfRun,
    Phase,
    end_without_word,
    parse_accounting,
    parse_jobs,
    parse_queue,
    phase_of,
    said_by_slurm,
    seconds_of,
    values_of,
    why_terminated,
    why_waiting,
)
from headrace.runs import CauseKind, Status

QUEUE_22 = """\
2+1|COMPLETED|None|data[1-2]|2026-11-22T13:05:10|2026-11-22T13:05:14|(null)
2+0|COMPLETED|None|dnn1|2026-11-22T13:05:10|2026-11-22T13:05:14|(null)
4+1|PENDING|Resources||2026-11-22T13:15:10|2026-11-22T13:25:10|(null)
4+0|PENDING|Priority||2026-11-22T13:05:12|2026-11-22T13:15:12|(null)
6|RUNNING|None|data1|2026-11-22T13:05:19|2026-11-22T13:06:19|(null)
8|CANCELLED|JobHeldUser||2026-11-22T13:05:23|2026-11-22T13:05:23|(null)
9|PENDING|None||N/A|N/A|(null)
"""

QUEUE_24 = """\
1+1|COMPLETED|None|data[1-2]|2026-11-22T13:19:12|2026-11-22T13:19:13|(null)
1+0|COMPLETED|None|dnn1|2026-11-22T13:19:12|2026-11-22T13:19:13|(null)
3+1|CANCELLED|None|data1|2026-11-22T13:19:14|2026-11-22T13:19:15|(null)
3+0|CANCELLED|None|dnn1|2026-11-22T13:19:14|2026-11-22T13:19:15|(null)
6|PENDING|JobHeldUser||N/A|N/A|(null)
7+1|RUNNING|None|data1|2026-11-22T13:19:21|NONE|(null)
7+0|RUNNING|None|dnn1|2026-11-22T13:19:21|NONE|(null)
"""
SHOWN_24 = (
    "JobId=3 HetJobId=3 HetJobOffset=0 JobName=b.sh HetJobIdSet=3-4 UserId=root(0) GroupId=root(0) "
    "MCS_label=N/A Priority=1 Nice=0 Account=(null) QOS=(null) JobState=CANCELLED Reason=None "
    "Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:15 RunTime=00:00:01 "
    "TimeLimit=UNLIMITED TimeMin=N/A SubmitTime=2026-11-22T13:19:11 EligibleTime=2026-11-22T13:19:11 "
    "AccrueTime=2026-11-22T13:19:11 StartTime=2026-11-22T13:19:14 EndTime=2026-11-22T13:19:15 Deadline=N/A "
    "SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-22T13:19:14 Scheduler=Backfill Partition=dnn "
    "AllocNode:Sid=head:0 ReqNodeList=(null) ExcNodeList=(null) NodeList=dnn1 BatchHost=dnn1 NumNodes=1 "
    "NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* ReqTRES=cpu=1,mem=500M,node=1,billing=1 "
    "AllocTRES=cpu=1,mem=500M,node=1,billing=1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 "
    "MinMemoryCPU=500M MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 "
    "Licenses=(null) Network=(null) Command=/shared/b.sh WorkDir=/ StdErr=/shared/o.log StdIn=/dev/null "
    "StdOut=/shared/o.log "
)


def test_a_job_is_where_its_components_are() -> None:
    queue = parse_queue(QUEUE_22)
    phases = {job_id: phase_of(job_id, queue) for job_id in (2, 4, 6, 8, 9, 99)}
    assert phases == {
        2: Phase.ENDED,
        4: Phase.WAITING,
        6: Phase.RUNNING,
        8: Phase.ENDED,
        9: Phase.WAITING,
        99: Phase.FORGOTTEN,
    }
    assert [(each.job_id, each.offset, each.nodes) for each in queue][:2] == [(2, 0, "dnn1"), (2, 1, "data[1-2]")]


def test_slurm_24_says_the_same_in_the_same_words() -> None:
    queue = parse_queue(QUEUE_24)
    phases = [phase_of(job_id, queue) for job_id in (1, 3, 6, 7)]
    assert phases == [Phase.ENDED, Phase.ENDED, Phase.WAITING, Phase.RUNNING]
    assert why_waiting(6, queue) == "JobHeldUser"
    assert queue[-1].end == 0
    (cancelled,) = parse_jobs(SHOWN_24)
    assert (cancelled.state, cancelled.exit_code, cancelled.signal, cancelled.nodes) == ("CANCELLED", 0, 15, "dnn1")
    assert values_of(SHOWN_24)["StdOut"] == "/shared/o.log"


def test_a_job_that_lost_a_component_goes_on() -> None:
    queue = parse_queue("5+0|RUNNING|None|dnn1|N/A|N/A|(null)\n5+1|NODE_FAIL|None|data1|N/A|N/A|(null)\n")
    assert phase_of(5, queue) is Phase.RUNNING


def test_a_state_that_only_a_later_slurm_knows_counts_as_running() -> None:
    assert phase_of(5, parse_queue("5|EXPEDITING|None|dnn1|N/A|N/A|(null)\n")) is Phase.RUNNING


def test_why_a_job_waits_is_told_once() -> None:
    queue = parse_queue(QUEUE_22)
    assert why_waiting(4, queue) == "Priority, Resources"
    assert why_waiting(9, queue) == ""


def test_until_when_a_job_that_was_queued_again_waits_is_told() -> None:
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1_795_350_000))
    queue = parse_queue(f"5|PENDING|BeginTime||{begin}|N/A|x\n6|PENDING|Priority||{begin}|N/A|y\n")
    assert why_waiting(5, queue) == "BeginTime, not before 2026-11-22 12:20:00 UTC"
    assert why_waiting(6, queue) == "Priority"  # Slurm's estimate, which changes


def test_the_end_of_a_component_is_a_time_where_slurm_knows_it() -> None:
    ends = {(each.job_id, each.offset): each.end for each in parse_queue(QUEUE_22)}
    assert time.strftime("%H:%M:%S", time.localtime(ends[2, 0])) == "13:05:14"
    assert ends[9, 0] == 0


def test_elements_of_arrays_and_other_lines_are_none_of_ours() -> None:
    assert parse_queue("7_[1-3]|PENDING|Resources||N/A|N/A|(null)\nslurm_load_jobs error: x\n\n") == ()


def test_a_value_may_hold_blanks() -> None:
    values = values_of("JobId=4 JobName=my job JobState=PENDING Comment=headrace:x y  StdErr=/tmp/a b/o.log Power= ")
    assert values["JobName"] == "my job"
    assert values["JobState"] == "PENDING"
    assert values["StdErr"] == "/tmp/a b/o.log"
    assert values["Power"] == ""


def shown(*parts: str) -> str:
    """What scontrol prints of the components of job 4, with these words of each."""
    lines = []
    for offset, words in enumerate(parts):
        head = f"JobId={4 + offset} HetJobId=4 HetJobOffset={offset} JobName=J UserId=root(0) "
        lines.append(f"{head}{words} RunTime=00:00:01 Command=/tmp/a.sh WorkDir=/ Comment=headrace:x ")
    return "\n".join(lines)


ENDS = {
    "launch failed (22.05)": (
        shown("JobState=FAILED Reason=JobLaunchFailure Requeue=0 ExitCode=0:53 NodeList=dnn1 BatchHost=dnn1"),
        (Status.FAILED, CauseKind.INSTANCE_NOT_STARTED, False, "/runs/r is not on a file system that the nodes share"),
    ),
    "cancelled in the queue (22.05)": (
        shown("JobState=CANCELLED Reason=JobHeldUser ExitCode=0:0 NodeList= NumNodes=1"),
        (Status.STOPPED, CauseKind.STOPPED, False, "was cancelled while it waited"),
    ),
    "cancelled (22.05)": (
        shown(
            "JobState=CANCELLED Reason=None ExitCode=0:0 NodeList=dnn1", "JobState=CANCELLED ExitCode=0:0 NodeList=d1"
        ),
        (Status.FAILED, CauseKind.ENGINE_FAILED, True, "Slurm job 4 was cancelled (scancel)"),
    ),
    "time limit": (
        shown("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:9 NodeList=dnn1"),
        (Status.STOPPED, CauseKind.MAX_RUN, False, "reached its time limit"),
    ),
    "node (24.11)": (
        shown(
            "JobState=CANCELLED ExitCode=0:0 NodeList=dnn1", "JobState=NODE_FAIL FailedNode=data1 NodeList=data[1-2]"
        ),
        (Status.FAILED, CauseKind.ENGINE_FAILED, True, "lost a node: data1"),
    ),
    "node (22.05)": (
        shown("JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0 NodeList=dnn1"),
        (Status.FAILED, CauseKind.ENGINE_FAILED, True, "lost a node: dnn1"),
    ),
    "preempted": (
        shown("JobState=PREEMPTED Reason=None ExitCode=0:0 NodeList=dnn1"),
        (Status.FAILED, CauseKind.PREEMPTED, True, "was preempted"),
    ),
    "memory": (
        shown("JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125 NodeList=dnn1"),
        (Status.FAILED, CauseKind.OUT_OF_MEMORY, False, "used more memory than it had asked for"),
    ),
    "the lead": (
        shown("JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 NodeList=dnn1 BatchHost=dnn1"),
        (Status.FAILED, CauseKind.ENGINE_FAILED, True, "ended as FAILED (exit code 1, signal 0)"),
    ),
    "forgotten": ("", (Status.FAILED, CauseKind.ENGINE_FAILED, True, "Slurm knows nothing of job 4 any more")),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_run_whose_lead_is_gone_is_what_slurm_says(name: str) -> None:
    text, expected = ENDS[name]
    status, cause = end_without_word(4, parse_jobs(text), "/runs/r")
    assert (status, cause.kind, cause.infrastructure) == expected[:3]
    assert expected[3] in str(cause)


def test_what_slurm_ends_is_never_stopped_by_a_person() -> None:
    for name in ("cancelled (22.05)", "preempted", "node (24.11)"):
        assert why_terminated(4, parse_jobs(ENDS[name][0])).cause.infrastructure
    still = parse_jobs(shown("JobState=COMPLETING Reason=None ExitCode=0:0 NodeList=dnn1"))
    ending = why_terminated(4, still)
    assert (ending.cause.kind, ending.cause.infrastructure, ending.may_return) == (CauseKind.ENGINE_FAILED, True, False)
    assert why_terminated(4, parse_jobs(ENDS["time limit"][0])).cause.kind is CauseKind.MAX_RUN
    killed = why_terminated(4, parse_jobs(shown("JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125")))
    assert (killed.cause.kind, killed.may_return) == (CauseKind.OUT_OF_MEMORY, False)
    for run_time, kind in (("00:01:00", CauseKind.MAX_RUN), ("00:00:59", CauseKind.ENGINE_FAILED)):
        line = f"JobId=4 JobState=COMPLETING ExitCode=0:0 RunTime={run_time} TimeLimit=00:01:00 NodeList=dnn1"
        assert why_terminated(4, parse_jobs(line)).cause.kind is kind


REQUEUED = """\
srun: got SIGCONT
slurmstepd-dnn1: error: *** JOB 4 ON dnn1 CANCELLED AT 2026-11-22T18:09:19 DUE TO PREEMPTION ***
slurmstepd-dnn1: error: *** JOB 4 ON dnn1 CANCELLED AT 2026-11-22T18:11:34 DUE TO JOB REQUEUE ***
"""
PREEMPTING = "JobState=COMPLETING ExitCode=0:0 NodeList=dnn1 PreemptTime=2026-11-22T18:15:00 SuspendTime=None"


def test_a_job_that_slurm_has_queued_again_may_return_and_slurm_says_why() -> None:
    words = [said_by_slurm(part) for part in ("", REQUEUED[: REQUEUED.index("JOB REQUEUE")], REQUEUED)]
    assert words == ["", "PREEMPTION", "JOB REQUEUE"]
    line = "JobState=COMPLETING Requeue=1 Restarts=2 ExitCode=0:0 NodeList=dnn1"
    for said, kind in zip(words, ("engine_failed", "preempted", "engine_failed"), strict=True):
        ending = why_terminated(4, parse_jobs(shown(line)), 1, said)
        assert (ending.cause.kind.value, ending.cause.infrastructure, ending.may_return) == (kind, True, True)
        assert said.lower() in str(ending.cause)
    assert not why_terminated(4, parse_jobs(shown(line)), 2, words[1]).may_return, "that was before this lead"


def test_a_preempted_job_may_return_and_one_that_only_could_be_preempted_is_not_taken_for_it() -> None:
    ending = why_terminated(4, parse_jobs(shown(PREEMPTING)))
    assert (ending.cause.kind, ending.may_return) == (CauseKind.PREEMPTED, True)
    could = PREEMPTING.replace("2026-11-22T18:15:00", "None") + " PreemptEligibleTime=2026-11-22T18:14:55"
    assert not why_terminated(4, parse_jobs(shown(could))).may_return
    assert seconds_of("UNLIMITED") == 0


# Printed by sacct of Slurm 22.05.8 with slurmdbd and MariaDB; 18 (it needs control groups) and 19 are written by hand.
ACCOUNTED = """\
1|TIMEOUT|0:0|data1|0|demo|headrace:x
2+0|COMPLETED|0:0|dnn1|0|demo|headrace:x
2+1|COMPLETED|0:0|data1|0|demo|headrace:x
4+0|FAILED|3:0|dnn1|0|demo|headrace:x
4+1|FAILED|3:0|data1|0|demo|headrace:x
6+0|CANCELLED by 0|0:0|dnn1|0|demo|headrace:x
6+1|CANCELLED by 0|0:0|data1|0|demo|headrace:x
8|CANCELLED by 0|0:0|None assigned|0|demo|headrace:x
9|FAILED|0:9|data1|0|demo|headrace:x
10|FAILED|0:53|data2|0|demo|headrace:x
11|PREEMPTED|0:0|data2|0|demo|headrace:x
17+0|NODE_FAIL|0:0|dnn1|0|demo|headrace:x
17+1|NODE_FAIL|0:0|data1|0|demo|headrace:x
18|OUT_OF_MEMORY|0:125|data1|0|demo|headrace:x
19|RUNNING|0:0|data1|0|demo|headrace:x
"""
ACCOUNTED_ENDS = {
    1: (Status.STOPPED, CauseKind.MAX_RUN, "reached its time limit"),
    2: (Status.FAILED, CauseKind.ENGINE_FAILED, "ended as COMPLETED (exit code 0, signal 0)"),
    4: (Status.FAILED, CauseKind.ENGINE_FAILED, "ended as FAILED (exit code 3, signal 0)"),
    6: (Status.FAILED, CauseKind.ENGINE_FAILED, "was cancelled (scancel)"),
    8: (Status.STOPPED, CauseKind.STOPPED, "was cancelled while it waited"),
    9: (Status.FAILED, CauseKind.ENGINE_FAILED, "ended as FAILED (exit code 0, signal 9)"),
    10: (Status.FAILED, CauseKind.INSTANCE_NOT_STARTED, "could not start on data2"),
    11: (Status.FAILED, CauseKind.PREEMPTED, "was preempted"),
    17: (Status.FAILED, CauseKind.ENGINE_FAILED, "lost a node: dnn1"),
    18: (Status.FAILED, CauseKind.OUT_OF_MEMORY, "used more memory"),
    19: (Status.FAILED, CauseKind.ENGINE_FAILED, "knows nothing of job 19 any more"),
}
OWN = JobOfRun("x", 0, "demo")


def accounted(number: int, words: tuple[str, str] = ("", "")) -> str:
    """What sacct printed of a job, with other words in place of these."""
    lines = ACCOUNTED.splitlines(keepends=True)
    return "".join(line for line in lines if line.split("|")[0].split("+")[0] == str(number)).replace(*words)


@pytest.mark.parametrize("number", ACCOUNTED_ENDS)
def test_the_end_of_a_job_that_the_controller_has_forgotten_is_what_the_accounting_says(number: int) -> None:
    ended = parse_accounting(accounted(number), OWN)
    assert [each.offset for each in ended] == ([0, 1] if "+1" in accounted(number) else [0] * (number != 19))
    status, cause = end_without_word(number, ended, "/runs/r")
    assert (status, cause.kind) == ACCOUNTED_ENDS[number][:2]
    assert ACCOUNTED_ENDS[number][2] in str(cause)


def test_the_accounting_of_another_job_says_nothing_and_a_cluster_may_keep_no_comments() -> None:
    assert len(parse_accounting(accounted(4, ("headrace:x", "")), OWN)) == 2
    for words in (("headrace:x", "headrace:y"), ("|0|demo", "|1|demo"), ("|demo|", "|other|")):
        assert parse_accounting(accounted(4, words), OWN) == ()
    assert parse_accounting("", OWN) == ()

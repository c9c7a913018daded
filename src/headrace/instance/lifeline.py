"""What an engine tells agents and coordinator: variables, commands, and by a pipe that it lives.

The supervisor holds the writing end of the pipe. When it is closed the supervisor is dead, whatever killed it.
"""

from __future__ import annotations

import msgspec

OPTION = "--lifeline"  # argument of the agent: its standard input is such a pipe
SCRATCH = "HEADRACE_SCRATCH"  # variable: directory for the temporary files of the job's programs
SPENT = "HEADRACE_SPENT"  # variable of an agent: seconds of max_run that were used up before this attempt
COST = "HEADRACE_COST"  # variable of an agent: USD of the budget that were used up, a blank, until when (epoch)
ATTEMPT = "HEADRACE_ATTEMPT"  # variable of an agent: which attempt of the job this is, from 1
COORDINATOR_LOST = 3  # exit code of an agent that gave up because it heard nothing from the coordinator
OF_PLATFORM = "HEADRACE_SIGNALS_OF_PLATFORM"  # variable of an agent with a lifeline: its platform signals it too
PACKAGE_ENTRY = "HEADRACE_PACKAGE"  # variable of an agent: what of PYTHONPATH is there for it, and not for programs
MACHINE_PYTHON = (
    "HEADRACE_MACHINE_PYTHON"  # variable of an agent: the job's Python is the machine's, and stays as it is
)
RUN_ID = "HEADRACE_RUN_ID"  # variable: marks every process of a run


class StopJob(msgspec.Struct, frozen=True, tag="stop"):
    """The coordinator is to stop the job.

    Attributes:
        kind: what kind of cause it is: the value of a `headrace.runs.CauseKind`, which this room does not import.
        reason: why, in words.
        failed: whether the job ends as Failed with it, else as Stopped.
        grace: seconds between SIGTERM and SIGKILL, None for the plan's; 0 is at once.
        infrastructure: whether the platform ends the job, so that another attempt may well succeed.
    """

    kind: str
    reason: str
    failed: bool
    grace: float | None = None
    infrastructure: bool = False


class AgentGone(msgspec.Struct, frozen=True, tag="gone"):
    """The agent of a host ended.

    Attributes:
        host: its name.
        reason: how it ended, in words.
        heard_nothing: it gave up because it heard nothing from the coordinator any more.
        last_lines: its last words.
    """

    host: str
    reason: str
    heard_nothing: bool = False
    last_lines: tuple[str, ...] = ()


Command = StopJob | AgentGone

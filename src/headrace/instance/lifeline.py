"""The pipe from an engine's supervisor to an agent: commands, and a sign of life.

The supervisor holds the writing end. When it is closed without a command the supervisor is dead, whatever killed it.
Commands are JSON lines. This module is for both ends. An engine without such a pipe sends the same commands to the
coordinator's port (`headrace.agent.ask`).
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
    """Stop. The leader's agent stops the job, another one its own host.

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
    """The agent of a host ended. For the leader's agent.

    Attributes:
        host: its name.
        reason: how it ended, in words.
        heard_nothing: it gave up because it heard nothing from the coordinator any more.
    """

    host: str
    reason: str
    heard_nothing: bool = False


class AttemptOver(msgspec.Struct, frozen=True, tag="over"):
    """The job's attempt is over: for an agent beside the leader's. One that its coordinator has not answered yet ends
    at once, for there is none any more that will; another one has its orders."""


Command = StopJob | AgentGone | AttemptOver
_decoder = msgspec.json.Decoder(Command)


def encode(command: Command) -> bytes:
    """Returns the line of a command."""
    return msgspec.json.encode(command) + b"\n"


class CommandReader:
    """Cuts what came through the pipe into commands."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Command]:
        """Takes the next bytes. Returns the commands that are complete. Raises msgspec.DecodeError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_decoder.decode(line) for line in lines if line]

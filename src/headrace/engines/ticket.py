"""What the submitting machine keeps of a run on a platform, by which it is found again: engine/ticket.json.

It is written before anything is submitted, so a submission that was killed at any instant is found again, too. Each
engine has a type of its own, with what its platform must be told to find the run.
"""

from __future__ import annotations

import os
import socket
import time
from typing import ClassVar, TypeVar

import msgspec

from headrace.private_folders import write_atomically
from headrace.record_files import read_json
from headrace.runs import RunPaths, process_start_time

TICKET = "ticket.json"
T = TypeVar("T", bound="Ticket")


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A run on a platform.

    Attributes:
        SUBMIT_SECONDS: that a submission may take from a machine whose processes cannot be seen from here.
        begun: when the submission began, seconds since the epoch.
        pid, start, node: the process that submits it.
        submitted: the platform has it.
    """

    SUBMIT_SECONDS: ClassVar[float] = 120.0

    begun: float = 0.0
    pid: int = 0
    start: float = 0.0
    node: str = ""
    submitted: bool = False

    @property
    def submitter_lives(self) -> bool:
        """Whether the process that submits the run may still be there."""
        if self.node != socket.gethostname():
            return time.time() < self.begun + self.SUBMIT_SECONDS
        return process_start_time(self.pid) == self.start


def by_this_process(ticket: T) -> T:
    """Returns a ticket that says that this process begins to submit the run now."""
    pid = os.getpid()
    start, node = process_start_time(pid) or 0.0, socket.gethostname()
    return msgspec.structs.replace(ticket, begun=time.time(), pid=pid, start=start, node=node)


def write_ticket(paths: RunPaths, ticket: Ticket) -> None:
    """Writes the ticket, at once."""
    paths.engine.mkdir(exist_ok=True)
    write_atomically(paths.engine / TICKET, msgspec.json.encode(ticket))


def read_ticket(paths: RunPaths, kind: type[T]) -> T:
    """Reads the ticket. Raises OSError, msgspec.DecodeError."""
    return read_json(paths.engine / TICKET, msgspec.json.Decoder(kind))

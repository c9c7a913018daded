"""The sessions of one loader, and what it tells their workers: the pipeline that they open, and the name of its job."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Any

from headrace.feed.client.session import Session
from headrace.feed.identifiers import PipelineNumber
from headrace.feed.pipelines import factory
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.fetch import Built, stack_arrays
from headrace.feed.wire import messages

JOB_VARIABLE = "HEADRACE_FEED_JOB"
MAX_JOB = 128  # characters
PIPELINE = PipelineNumber(1)  # a session has one


def opening_by_name(
    of: Built, init: Callable[[int], None] | None, name: str, plan: str, lanes: int, ranks: int
) -> messages.Open:
    """Returns how feed servers open a pipeline.

    Args:
        of: the pipeline, which is not built here, and the user's `collate_fn`.
        init: `worker_init_fn`.
        name: of the loader.
        plan: plan fingerprint.
        lanes, ranks: see `messages.Open`.

    Raises:
        PipelineError: a function has no importable name.
    """
    named: Pipeline[Any] = of.dataset
    stacked = of.default_collate and of.collate is not stack_arrays
    collate = "" if stacked else factory.function_name(of.collate, "collate_fn")
    begin = factory.function_name(init, "worker_init_fn") if init else ""
    return messages.Open(
        PIPELINE, named.factory, named.arguments, collate, begin, of.batched, name, plan,
        lanes=lanes, job=job_of(plan), opener=secrets.token_hex(8), ranks=ranks,
    )  # fmt: skip


def job_of(plan: str) -> str:
    """Returns the name of this job among those that share a feed server; all its ranks must find the same.

    It is HEADRACE_FEED_JOB, or else where the ranks of torchrun meet; a process without ranks is a job of its own.

    Args:
        plan: plan fingerprint, empty where nothing is divided among ranks.
    """
    named = os.environ.get(JOB_VARIABLE, "")
    if named:
        return named[:MAX_JOB]
    meeting = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    given = not os.environ.get("RANK") and meeting[1] == os.environ.get("SM_MASTER_PORT")  # to all, as on SageMaker
    if all(meeting) and not given:
        return ":".join(meeting)[:MAX_JOB]
    return "" if plan else f"{socket.gethostname()[:64]}:{os.getpid()}"


class OpenSessions:
    """One session for each pass that goes on, and the one that waits for the next pass.

    It keeps no reference to the loader, so that a loader that nobody uses closes them."""

    def __init__(self) -> None:
        self._opened: list[Session] = []
        self._idle: Session | None = None
        self._goes_on_with: int | None = None

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._opened))

    def __bool__(self) -> bool:
        return bool(self._opened)

    def waiting(self, make: Callable[[], Session]) -> Session:
        """Returns the session that waits for the next pass; makes one if there is none."""
        if self._idle is not None and self._idle.inherited:
            self._idle.close()  # nothing of the other process's
        if self._idle is None or self._idle.closed:
            self._opened[:] = [session for session in self._opened if not session.closed]
            self._idle, self._goes_on_with = make(), None
            self._opened.append(self._idle)
        return self._idle

    def take(self, make: Callable[[], Session]) -> tuple[Session, int | None]:
        """Returns the session of a pass, which is the pass's until it is given back, and the epoch that it has begun.

        A session begins the epoch after the latest one by itself, where it can; else that number is None.
        """
        session, begun = self.waiting(make), self._goes_on_with
        self._idle = self._goes_on_with = None
        return session, begun

    def give_back(self, session: Session, goes_on_with: int | None, *, keep: bool) -> None:
        """Keeps the session of a pass for the next one, or ends it.

        Args:
            session: the session.
            goes_on_with: the epoch that it has begun by itself, if it has.
            keep: whether workers are kept over epochs.
        """
        if keep and self._idle is None and not session.closed:
            self._idle, self._goes_on_with = session, goes_on_with
            return
        session.close()
        if session in self._opened:
            self._opened.remove(session)

    def position_set(self) -> None:
        """The next pass begins elsewhere: what a session has begun by itself is not wanted."""
        self._goes_on_with = None

    def close(self) -> None:
        """Closes all."""
        while self._opened:
            self._opened.pop().close()
        self._idle = self._goes_on_with = None

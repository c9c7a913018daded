"""An engine whose runs live on a platform, and not with the process that submits them: what all such engines do, once.

An engine of this kind says what its options and rules are, what would run where (`plan`), what is submitted (`submit`),
how a run is looked at (`bring`), cancelled and logged:

    class Mine(PlatformEngine[RemoteJob, MyTicket]):
        name, Ticket, Options = "mine", MyTicket, MyOptions

        def plan(self, job): ...
        def submit(self, planned, paths): ...
        def bring(self, run, ticket): ...
        def cancel(self, run, ticket, now): ...

    ENGINE = Mine()

The entry point of the engine names the module. `headrace.engines` says what each function of the engine promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Generic, TypeVar

import msgspec

from headrace.engines.documents import Capability, Document, log_documents
from headrace.engines.handle import RemoteHandle
from headrace.engines.new_run import new_run
from headrace.engines.planning.engine_job import EngineJob
from headrace.engines.platform_news import alone
from headrace.engines.remote_job import check_remote_job, plan_document
from headrace.engines.ticket import TICKET, Ticket, read_ticket
from headrace.errors import EngineRefused, EngineUnreachable
from headrace.job import Job
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import Finding
from headrace.job.rules.engine_rules import IDLE_ON_OWN_HOSTS, NO_RANGE, Unused, idle, options_rules, own_hosts
from headrace.runs import Run, RunPaths

WAITS = ("stopping_condition.max_wait", "stopping_condition.max_pending_time")
"""Keys of a job that say how long it may wait, where a platform has a way of its own."""
P = TypeVar("P", bound=EngineJob)
T = TypeVar("T", bound=Ticket)


class PlatformEngine(ABC, Generic[P, T]):
    """See the module.

    Attributes:
        name: of the engine.
        Ticket: by which its runs are found again.
        Options: model of what a job has under `engines.NAME`, for an engine that headrace does not bring; `options_of`
            returns them. None: none are checked.
        unused: keys of a job that have no effect here, with the reason; in sections by dots.
        whom: what helps where the platform cannot be asked and does not say why.
        own_trees: each host has a file system of its own, where the run's directory has the path that it has here.
    """

    name: ClassVar[str]
    Ticket: type[T]
    Options: ClassVar[type[Part] | None] = None
    unused: ClassVar[Mapping[str, str]] = {**IDLE_ON_OWN_HOSTS, **NO_RANGE}
    whom: ClassVar[str] = "ask who runs the cluster"
    own_trees: ClassVar[bool] = False

    # --- what an engine says -------------------------------------------------------------------------------------

    @abstractmethod
    def plan(self, job: Job) -> P:
        """Returns what would run where; starts and writes nothing. Raises JobInvalid, EngineRefused."""

    @abstractmethod
    def submit(self, planned: P, paths: RunPaths) -> bool:
        """Fills the directory of a run, writes its ticket, gives it to the engine (`give_to_engine`), and submits it.

        Returns:
            Whether somebody has interrupted that (Ctrl-C) when the platform may have had it: it is being stopped.

        Raises:
            UsageError, StorageError, OSError: then nothing of it is left on the platform, nor of the directory.
        """

    @abstractmethod
    def bring(self, run: Run, ticket: T) -> None:
        """Brings what the platform knows into the record of a run; one process at a time does it. It writes the end of
        a run that the platform has no more, or that cannot write its own. Raises HeadraceError, OSError."""

    @abstractmethod
    def cancel(self, run: Run, ticket: T, now: bool) -> bool:
        """Asks a run to stop whose record has no end. Returns whether it was still waiting or running.

        Raises:
            EngineRefused: it cannot be asked.
        """

    def said(self, run: Run, ticket: T) -> Iterable[Document]:
        """Returns what the platform has of a run now: a second source beside its record. Raises HeadraceError."""
        return ()

    def works(self) -> Iterable[Capability]:
        """Yields what works in this engine from here. Starts nothing. Raises EngineRefused: the platform does not."""
        return ()

    def rules(self, job: Job) -> Iterator[Finding]:
        """Yields what this engine refuses of a job."""
        yield from own_hosts(job, self.name)
        yield from options_rules(self.name, self.Options, job)

    # --- where engines differ a little -----------------------------------------------------------------------------

    def being_submitted(self, ticket: T) -> bool:
        """Tells whether a process is still submitting a run, so that it cannot be stopped yet."""
        return not ticket.submitted and ticket.submitter_lives

    def reach(self, ticket: T) -> AbstractContextManager[object]:
        """Enters what must hold while the platform of a run is asked."""
        return nullcontext()

    def started(self, planned: P, paths: RunPaths, detach: bool) -> None:
        """Called when a run was submitted."""

    def refreshed(self, run: Run, ticket: T) -> None:
        """Called when `bring` is over, when others may refresh the run again."""

    # --- once --------------------------------------------------------------------------------------------------------

    def without_effect(self, job: Job) -> Iterable[Unused]:
        """Returns what of a job has no effect in this engine."""
        return idle(job, self.unused)

    def capabilities(self) -> tuple[Capability, ...]:
        """Returns what works in this engine from here, or why its platform does not. Starts nothing."""
        try:
            return tuple(self.works())
        except EngineRefused as error:
            return (Capability(self.name, False, error.message, error.hint or self.whom, needed=True),)

    def options_of(self, job: Job) -> Part | None:
        """Returns the options of a job for an engine that headrace does not bring, as its model has them."""
        return None if self.Options is None else self.Options.model_validate(job.engine_options(self.name))

    def check(self, job: Job) -> P:
        """Checks everything that can be known before a job is submitted; returns what `start` goes on with."""
        planned = self.plan(job)
        check_remote_job(planned)
        return planned

    def render(self, job: Job) -> tuple[Document, ...]:
        """Returns what would be submitted."""
        return (plan_document(self.plan(job)),)

    def start(self, job: Job, detach: bool = False) -> RemoteHandle:
        """Submits a run. It lives without this process, detached or not."""
        checked = self.check(job)
        with new_run(job, self.name) as made:
            paths = RunPaths(made.root.resolve()) if self.own_trees else made
            interrupted = self.submit(checked.in_run(paths), paths)
        if interrupted:
            raise KeyboardInterrupt
        self.started(checked, paths, detach)
        return RemoteHandle(paths)

    def stop(self, run: Run, now: bool = False) -> bool:
        """Asks a run to stop. Returns whether it was still waiting or running."""
        ticket = self.ticket_of(run)
        if self.being_submitted(ticket):
            raise EngineRefused(f"{run.id} is being submitted", "ask again in a moment")
        if run.over:
            return False
        with self.reach(ticket):
            return self.cancel(run, ticket, now)

    def refresh(self, run: Run) -> None:
        """Brings what the platform knows of a run into its record, unless another process does."""
        with alone(run.paths) as mine:
            if not mine:
                return
            ticket = self.ticket_of(run)
            with self.reach(ticket):
                self.bring(run, ticket)
        self.refreshed(run, ticket)

    def alive(self, run: Run) -> bool:
        """Returns whether a run goes on: `refresh` writes its end as soon as the platform has no more of it."""
        self.ticket_of(run)
        return not run.over

    def logs(self, run: Run) -> tuple[Document, ...]:
        """Returns what headrace's own processes have logged of a run, and what the platform has of it."""
        ticket = self.ticket_of(run)
        with self.reach(ticket):
            return (*log_documents(run.paths), *self.said(run, ticket))

    def ticket_of(self, run: Run) -> T:
        """Returns the ticket of a run. Raises EngineUnreachable when it cannot be read."""
        try:
            return read_ticket(run.paths, self.Ticket)
        except (OSError, msgspec.DecodeError) as error:
            raise EngineUnreachable(f"{run.paths.engine / TICKET} cannot be read: {error}") from error

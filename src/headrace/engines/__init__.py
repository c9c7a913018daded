"""Where instances come from. An engine is a module, or an object, with the functions of `Engine`.

    plan(job)           what would run where, and what it may use there; starts and writes nothing
    check(job)          raises what would stop `start`, else returns what it goes on with; starts nothing
    render(job)         exactly what would be submitted, as documents; starts and writes nothing
    start(job, detach)  starts a run and returns its handle; the run may be detached from the caller
    stop(run, now)      stops a run, whichever process started it
    refresh(run)        writes into the record of a run what its platform knows and the record does not
    alive(run)          whether the platform still has a run
    logs(run)           what the platform has to say of a run, beside what its programs print
    resume(run)         goes on with a start whose process was killed; an engine may be without it
    take_up(job, tags)  the run of a job that its platform has already, by the job's name; an engine may be without it
    capabilities()      what works here, and what does not and why

Two kinds of engines share this face:

* A process of this machine answers for a run (``local``): its pid is in the run's header. `refresh` has nothing to do.
* A platform answers for it: `start` creates the run, prepares it, gives it to the engine
  (`headrace.runs.give_to_engine`: the header's pid becomes `ASK_ENGINE`), submits it, keeps what it needs to
  find it again in ``engine/ticket.json``, and returns a `headrace.engines.handle.RemoteHandle`. What looks at
  the run does so through `headrace.engines.asking.AskEngine`, which calls `refresh` and `alive`. The process
  that submitted it may go away, the machine too.

An engine is found by entry point (see `headrace.job.find_engine`) and imported when it is used; anyone can install one.
The functions of this module call those of the engine that is named, or that the run's header names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from headrace.engines.documents import Capability, Document
from headrace.errors import EngineRefused

if TYPE_CHECKING:
    from headrace.engines.handle import Handle
    from headrace.instance.launch_plan import LaunchPlan
    from headrace.job import Job
    from headrace.job.rules.engine_rules import Unused
    from headrace.runs import Run

__all__ = [
    "Capability",
    "Document",
    "alive",
    "capabilities",
    "check",
    "logs",
    "plan",
    "refresh",
    "render",
    "resume",
    "start",
    "stop",
    "take_up",
]


class Planned(Protocol):
    """What `plan` and `check` return; an engine's own has more."""

    @property
    def plan(self) -> LaunchPlan:
        """What runs where. Until there is a run, its id and folders stand for one that does not exist."""

    @property
    def limits(self) -> tuple[str, ...]:
        """What the instances may use of their machines, in sentences."""

    @property
    def without_effect(self) -> tuple[Unused, ...]:
        """What of the job is accepted and has no effect in this engine."""


class Engine(Protocol):
    """What an engine must have."""

    def plan(self, job: Job) -> Planned:
        """See `headrace.engines.plan`."""

    def check(self, job: Job) -> Planned:
        """See `headrace.engines.check`."""

    def render(self, job: Job) -> tuple[Document, ...]:
        """See `headrace.engines.render`."""

    def start(self, job: Job, detach: bool) -> Handle:
        """See `headrace.engines.start`."""

    def stop(self, run: Run, now: bool) -> bool:
        """See `headrace.engines.stop`."""

    def refresh(self, run: Run) -> None:
        """See `headrace.engines.refresh`."""

    def alive(self, run: Run) -> bool:
        """See `headrace.engines.alive`."""

    def logs(self, run: Run) -> tuple[Document, ...]:
        """See `headrace.engines.logs`."""

    def capabilities(self) -> tuple[Capability, ...]:
        """See `headrace.engines.capabilities`."""


def plan(job: Job, engine: str = "local") -> Planned:
    """Returns the launch plan of a job and what goes with it; whether it could start now is not checked.

    Raises:
        EngineRefused: no engine of that name.
        JobInvalid: the job asks for something that the engine does not have.
    """
    return find(engine, "plan").plan(job)


def check(job: Job, engine: str = "local") -> Planned:
    """Checks that a job could start here and now.

    Returns:
        What `plan` returns, as `start` would use it.

    Raises:
        JobInvalid: a file or CPU that is not there.
        EngineRefused: a port in use, a job of that name that runs, no engine of that name.
    """
    return find(engine, "check").check(job)


def render(job: Job, engine: str = "local") -> tuple[Document, ...]:
    """Returns exactly what the engine would submit, or start, for a job. Nothing is started or written.

    No document holds the job's secret. What is known only once there is a run, its id and folders, is that of a run
    that does not exist.

    Raises:
        JobInvalid, EngineRefused: as `plan` does.
    """
    return find(engine, "render").render(job)


def start(job: Job, engine: str = "local", detach: bool = False) -> Handle:
    """Starts a run of the job.

    Args:
        job: the job.
        engine: name of the engine.
        detach: the run lives without this process. Else an engine of this machine stops it when this process dies,
            however that happens; on a platform it lives on all the same.

    Raises:
        JobInvalid, EngineRefused: as `check` does; nothing was started, nothing is left.
    """
    return find(engine, "start").start(job, detach)


def resume(run: Run) -> None:
    """Goes on with the start of a run whose process was killed meanwhile, as far as is known how far it had come.
    Afterwards the run goes on, or has ended, perhaps before anything of it was started.

    Raises:
        HeadraceError, OSError: it cannot go on now.
    """
    engine = _engine_of(run)
    if hasattr(engine, "resume"):
        engine.resume(run)


def take_up(job: Job, engine: str, tags: dict[str, str]) -> Handle | None:
    """Returns the run of a job that another process has given to the engine's platform, where names are unique there.

    Args:
        job: the job.
        engine: name of the engine.
        tags: that the platform's job must have.

    Returns:
        The run; None when the platform has none of that name, or names say nothing there.

    Raises:
        NameInUse: it has one that was not made of this job.
        HeadraceError, OSError: it cannot be asked now.
    """
    found = find(engine)
    return cast("Handle | None", found.take_up(job, tags)) if hasattr(found, "take_up") else None


def stop(run: Run, now: bool = False) -> bool:
    """Asks a run to stop, whichever process started it.

    Args:
        run: the run.
        now: kill its programs instead of asking them.

    Returns:
        Whether it was still running.
    """
    return _engine_of(run, "stop").stop(run, now)


def refresh(run: Run) -> None:
    """Brings what a run's platform knows into its record: events (queued and why, a node lost, out of memory, gone: see
    `headrace.engines.platform_news`), and files that are elsewhere until they are fetched.

    It may be called at any time, by several processes at once, also after the end of the run. It returns within
    seconds.

    Raises:
        EngineRefused: this user has not started the run here.
        HeadraceError, OSError: the platform cannot be asked now. That says nothing about the run.
    """
    _engine_of(run, "refresh").refresh(run)


def alive(run: Run) -> bool:
    """Returns whether a run goes on as far as its platform knows: it is queued, runs, or its record is still being
    written or on its way. False means that the record will not grow any more; when it does not hold the end of the run
    (`run_finished`) by then, the run has failed.

    Raises:
        HeadraceError, OSError: as `refresh` does.
    """
    return _engine_of(run, "alive").alive(run)


def logs(run: Run) -> tuple[Document, ...]:
    """Returns what a run's platform has of it now: logs of supervisors and agents, what the scheduler or the cluster
    says of its job. It is the second source, for whoever must find out why the record says what it says.

    Of a copy of a record, and of somebody else's, only the logs that lie in it are returned: the platform is not asked.

    Raises:
        EngineRefused: the engine has none.
        HeadraceError, OSError: the platform cannot be asked now, or a log cannot be read.
    """
    from headrace.engines.documents import log_documents
    from headrace.own_runs import started_here
    from headrace.runs.store import is_copy

    if is_copy(run.paths) or not started_here(run.paths.root):
        return log_documents(run.paths)
    engine = find(run.header.engine)
    if not hasattr(engine, "logs"):
        hint = f"headrace logs {run.id} shows what its programs have printed"
        raise EngineRefused(f"the engine {run.header.engine!r} has no logs of its own", hint=hint)
    return engine.logs(run)


def capabilities(engine: str = "local") -> tuple[Capability, ...]:
    """Returns what works in an engine from here, and what does not, why, and what to install. Starts no job.

    Raises:
        EngineRefused: no engine of that name, or one that cannot tell.
    """
    found = find(engine)
    if not hasattr(found, "capabilities"):
        raise EngineRefused(f"the engine {engine!r} does not say what works in it", hint="ask whoever made it")
    return found.capabilities()


def _engine_of(run: Run, function: str = "") -> Engine:
    """Returns the engine of a run that this user has started here; no other run makes an engine do anything."""
    from headrace.own_runs import require_started_here

    require_started_here(run.paths.root, f"the engine {run.header.engine!r} is asked nothing")
    return find(run.header.engine, function)


def find(name: str, function: str = "") -> Engine:
    """Returns the engine of that name.

    Args:
        name: the engine.
        function: what it must have.

    Raises:
        EngineRefused: there is no such engine, or it does not have the function.
    """
    # Here, because the programs that make namespaces import this package too, and run without any library.
    from headrace.job.find_engine import find_engine

    return cast(Engine, find_engine(name, function))

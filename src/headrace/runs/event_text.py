"""Events in words: one short sentence each, for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from headrace.exit_status import short_exit_text
from headrace.runs.events import (
    ArtefactsStored,
    AttemptBilled,
    AttemptStarted,
    ChannelProgress,
    CheckpointsRestored,
    DataWorkerLost,
    Event,
    FailureWritten,
    FeedReady,
    FilesLeft,
    HostIsolated,
    HostJoined,
    HostLost,
    HostNotCollected,
    HostRegistered,
    HostReleased,
    HostStarted,
    InstancesStarted,
    JobFinished,
    JobStarted,
    JobStopping,
    LeftOut,
    MetricsLeftOut,
    ProgramExited,
    ProgramStarted,
    RecordNotStored,
    RequirementsInstalled,
    RunFinished,
    SecondaryStatus,
    ServerReady,
    StatusChanged,
)
from headrace.runs.run_paths import RunPaths

if TYPE_CHECKING:
    from headrace.runs.state import Program, RunState

_SEEN = frozenset({SecondaryStatus.TRAINING, SecondaryStatus.STOPPING})  # without being told
_DISPATCHER = "tf-dispatcher"  # its stream; `headrace.instance.frameworks` names it, which this room may not import


def counted(number: int, what: str) -> str:
    """Returns a number of things in words.

    >>> counted(1, "file"), counted(0, "file")
    ('1 file', '0 files')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def worlds_text(worlds: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Returns that the ranks of a job train in several worlds; empty when there is one, or none.

    Args:
        worlds: kind and groups of each.

    >>> worlds_text([("mpi", ["a", "b"]), ("torch_distributed", ["c"])])
    '2 worlds train, each by itself: mpi on a and b, torch_distributed on c'
    """
    each = [f"{kind} on {' and '.join(groups)}" for kind, groups in worlds]
    return f"{len(each)} worlds train, each by itself: {', '.join(each)}" if len(each) > 1 else ""


def program(stream: str) -> str:
    """Returns the name of a program: ``rank 0``, ``feed``."""
    return f"rank {stream}" if stream.isdecimal() else stream


def lines_text(event: ProgramExited | Program) -> str:
    """Returns how much of a program's output is not in its log, because the disk did not take it; else nothing."""
    return f"lines of its output that the disk did not take: {event.lost_lines}" if event.lost_lines else ""


def losses(lost: Iterable[HostLost | DataWorkerLost]) -> str:
    """Returns which data workers a degraded run has lost, even if they were replaced; empty when it is not degraded.

    >>> losses([DataWorkerLost(t=0.0, group="d", host="algo-1", reason="killed", stream="tf-dispatcher")])
    'the dispatcher of tf.data.service was lost'
    """
    streams = [event.stream for event in lost if isinstance(event, DataWorkerLost)]
    workers = any(stream != _DISPATCHER for stream in streams)
    if _DISPATCHER in streams:
        also = " and data workers were" if workers else " was"
        return f"the dispatcher of tf.data.service{also} lost"
    return "data workers were lost" if workers else ""


def not_started(state: RunState) -> str:
    """Returns why no program of a run has started, with the time in UTC; empty when one has.

    >>> from headrace.runs.state import Transition
    >>> not_started(RunState(transitions=(Transition(SecondaryStatus.PENDING, 0.0, message="job 7 waits: Resources"),)))
    'the run has not started: Pending since 1970-01-01 00:00:00 UTC: job 7 waits: Resources'
    """
    if state.started is not None or state.programs:
        return ""
    if state.finished:
        why = f": {state.cause}" if state.cause is not None else ""
        return f"the run ended before its programs started: {state.status.value}{why}"
    if not state.transitions:
        return "the run has not started"
    last = state.transitions[-1]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(last.start))
    message = f": {last.message}" if last.message else ""
    return f"the run has not started: {last.status.value} since {since} UTC{message}"


def sentence(event: Event) -> str:
    """Returns what happened, without the place.

    >>> sentence(HostLost(t=0.0, group="data", host="algo-2", reason="silent for 10 s"))
    'host lost: silent for 10 s'
    """
    return _SENTENCES[type(event)](event)


def told(event: Event) -> str:
    """Returns what happened to the run, with the place, if it is worth knowing for one who waits; else nothing.

    What the programs do is seen in their output.
    """
    if isinstance(event, StatusChanged):
        pending = event.status is SecondaryStatus.PENDING  # its message is only why
        return "" if event.status in _SEEN else sentence(event) if pending else event.message
    if isinstance(event, HostIsolated):
        return "" if event.level != "none" else f"{event.group}/{event.host}: {sentence(event)}"
    if isinstance(event, HostReleased | HostJoined | HostLost | DataWorkerLost | HostNotCollected):
        degraded = " (run degraded)" if isinstance(event, DataWorkerLost) and not event.fatal else ""
        return f"{event.group}/{event.host}: {sentence(event)}{degraded}"
    if isinstance(event, ChannelProgress) and event.files == event.files_total:
        return f"channel {event.channel}: {counted(event.files, 'file')}, {event.bytes / 1e6:.1f} MB"
    if isinstance(event, ProgramExited):
        words = _ended(event) if event.failed else lines_text(event)
        return words and f"{event.group}/{event.host}[{event.stream}]: {words}"
    return ""


def record_text(event: RecordNotStored) -> str:
    """Returns that the end of a run's record is only on its own machine."""
    if not event.reason:
        return f"the end of the record is stored in {event.uri} once more"
    return f"the end of the record was not stored in {event.uri}: {event.reason}; `headrace wait RUN` tries it again"


def files_left(event: FilesLeft, paths: RunPaths | None = None) -> str:
    """Returns what was written and not kept, or is kept in the run's directory alone.

    Args:
        event: what was written.
        paths: the run's directory; its place is told where there is one.

    >>> from headrace.runs.events import LeftFolder
    >>> files_left(FilesLeft(t=0.0, group="g", host="algo-1", files=12, bytes=34 * 10**7,
    ...     folders=(LeftFolder("/tmp/outp", 12, 34 * 10**7),))).partition(": ")[0]
    '12 files, 340 MB, in /tmp/outp on algo-1 were not kept'
    """
    names = ", ".join(folder.path for folder in event.folders)
    more = f" and {counted(event.more, 'other folder')}" if event.more else ""
    what = f"{counted(event.files, 'file')}, {_size(event.bytes)}, in {names}{more} on {event.host}"
    if event.gone:
        many = "was" if event.files == 1 else "were"
        hint = "write to /opt/ml/model or output_path (/opt/ml/output/data), or name the place in `keep` of the job"
        return f"{what} {many} not kept: {hint}"
    where, run = ("the run's directory", "RUN") if paths is None else (paths.host(event.host) / "code", paths.id)
    return f"{what}, below the working directory, are in {where} only: `headrace files {run}` lists and copies them"


def _size(number: int) -> str:
    """Returns bytes in words: ``340 MB``."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return counted(number, "byte")


def silence_text(seconds: float) -> str:
    """Returns that a copy of a record has had nothing new for so long.

    >>> silence_text(34.6)
    'a copy, with nothing new for 35 s: its clocks stand at its newest part'
    """
    return f"a copy, with nothing new for {seconds:.0f} s: its clocks stand at its newest part"


def left_out(event: MetricsLeftOut) -> str:
    """Returns what the search for metrics left out, with its number once that is known.

    >>> left_out(MetricsLeftOut(t=0.0, group="g", host="algo-1", what=LeftOut.VALUES, definition="loss", count=2))
    'metric definitions: 2 values of loss were no finite numbers'
    """
    name, number = event.definition, f"{event.count} " if event.count else ""
    milliseconds = f"{event.limit * 1000:g} ms"
    if event.what is LeftOut.DEFINITION:
        return (
            f"metric definition {name} is switched off: {number}of its searches took more than {milliseconds}; its "
            f"regex tries too many ways to match: {event.example}"
        )
    what = {
        LeftOut.LINES: f"lines were not searched: more than {event.limit:g} s of work",
        LeftOut.LINE_ENDS: f"lines were searched in their first {event.limit:g} characters only",
        LeftOut.SEARCHES: f"searches of {name} were broken off after {milliseconds}",
        LeftOut.VALUES: f"values of {name} were no finite numbers",
    }[event.what]
    return f"metric definitions: {number}{what}" + (f", the first: {event.example!r}" if event.example else "")


def _ended(event: ProgramExited) -> str:
    how = f"ended with {short_exit_text(event.exit_code, event.signal)}{', as it was told to' if event.stopped else ''}"
    return ", ".join(filter(None, (how + (f": {event.reason}" if event.reason else ""), lines_text(event))))


def _worker_lost(event: DataWorkerLost) -> str:
    who = "dispatcher" if event.stream == _DISPATCHER else "data worker"
    without = "the job cannot go on" if event.fatal else "the job goes on without it"
    return f"{who} lost: {event.reason}; {'replaced' if event.recovered else without}"


def _finished(event: JobFinished | RunFinished) -> str:
    return f"finished: {event.status.value}" + (f": {event.cause}" if event.cause else "")


_SENTENCES: dict[type[Event], Callable[[Any], str]] = {
    StatusChanged: lambda event: event.status.value + (f": {event.message}" if event.message else ""),
    InstancesStarted: lambda event: f"{sum(map(len, event.hosts.values()))} instances run, their clocks start",
    AttemptStarted: lambda event: f"attempt {event.number} begins",
    AttemptBilled: lambda event: (
        f"{event.name}: billed for {event.billable_seconds} s of {event.training_seconds} s an instance"
    ),
    HostStarted: lambda event: f"instance started, agent pid {event.pid}",
    HostIsolated: lambda event: f"isolation: {event.level} ({event.why})",
    HostRegistered: lambda event: "registered with the coordinator",
    HostLost: lambda event: f"host lost: {event.reason}",
    HostReleased: lambda event: "released: it costs no more",
    HostJoined: lambda event: f"joins: the ranks could use {counted(event.desired, 'data host')}",
    HostNotCollected: lambda event: f"what it made, or the end of its record, is missing: {event.reason}",
    ProgramStarted: lambda event: f"{program(event.stream)} started, pid {event.pid}",
    ProgramExited: lambda event: f"{program(event.stream)} {_ended(event)}",
    FailureWritten: lambda event: "output/failure written by headrace",
    FeedReady: lambda event: f"feed server ready with {event.executors} executors",
    ServerReady: lambda event: f"{event.stream} ready with TensorFlow {event.version}",
    DataWorkerLost: _worker_lost,
    CheckpointsRestored: lambda event: f"{counted(event.files, 'checkpoint file')} restored from {event.uri}",
    RequirementsInstalled: lambda event: (
        f"requirements {'reused' if event.reused else 'installed'} ({event.seconds:.1f} s)"
    ),
    ChannelProgress: lambda event: (
        f"channel {event.channel}: {event.files} of {counted(event.files_total, 'file')}, {event.bytes / 1e6:.1f} MB"
    ),
    ArtefactsStored: lambda event: (
        f"{event.name} stored: {counted(event.files, 'file')}, {event.bytes / 1e6:.1f} MB, in {event.uri}"
    ),
    JobStarted: lambda event: "all hosts registered; programs start",
    JobStopping: lambda event: f"stopping: {event.reason}",
    JobFinished: lambda event: f"job {_finished(event)}",
    RunFinished: lambda event: f"run {_finished(event)}",
    MetricsLeftOut: left_out,
    RecordNotStored: record_text,
    FilesLeft: files_left,
}
"""What each kind of event says."""

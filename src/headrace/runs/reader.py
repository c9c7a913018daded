"""One run, as its files show it: while it grows, after it has ended, and without the engine that made it."""

from __future__ import annotations

import contextlib
import heapq
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args

import msgspec

from headrace.errors import UsageError
from headrace.feed_metrics import LoaderSecond, ValueNotFinite, ValueSecond, WorkerSecond
from headrace.record_files import decode_record
from headrace.runs.cause import Cause
from headrace.runs.events import ArtefactsStored, Event, Status
from headrace.runs.log_lines import LogFollower, LogLine, Selector, parse_selector, stream_of
from headrace.runs.metric_records import HostSecond, Metric, PlatformMinute, ServiceSecond
from headrace.runs.run_paths import HOST, PLATFORM, RunPaths, Stream
from headrace.runs.segment_reader import read_copied
from headrace.runs.state import Program, RunState, last_word, state_of
from headrace.runs.store import RECORD_VERSION, RunHeader, find_run, is_copy, list_paths, read_header, supervisor_alive
from headrace.runs.tail import Damage, Newer, TailSet, Told, Tree, UnknownKind

POLL_SECONDS = 0.08
_AFTER_DEATH = 0.5  # silence after which a run without a supervisor is taken as read
_AFTER_DEATH_MAX = 5.0
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_KIND = 60  # characters of the name of an unknown kind that are shown

Alive = Callable[["Run"], bool]
Value = ValueSecond | ValueNotFinite
"""Values of a metric that the job's programs log, or that its metric definitions find."""
M = TypeVar("M", LoaderSecond, WorkerSecond, HostSecond, ValueSecond, ServiceSecond, PlatformMinute)


def _decoder(kinds: UnionType, field: str) -> Callable[[bytes], Any]:
    """Returns the decoder of records, which raises UnknownKind for those of a newer headrace.

    Args:
        kinds: the types that are known.
        field: which holds the tag of a record's type.
    """
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kinds)
    known = {kind.__struct_config__.tag for kind in get_args(kinds)}

    def decoded(line: bytes) -> Any:
        try:
            return decode_record(decoder, line)
        except msgspec.ValidationError:
            found = decode_record(_any, line)  # whole, or it is damaged
            tag = found.get(field) if isinstance(found, dict) else None
            if isinstance(tag, str) and tag not in known:
                raise UnknownKind(f"{field} {tag[:_KIND]!r}") from None
            raise

    return decoded


_decode_event = _decoder(Event, "event")
_decode_finite = _decoder(Metric, "metric")
_OTHERS = tuple(  # how the lines of all other metrics begin, as msgspec writes them
    f'{{"metric":"{kind.__struct_config__.tag}"'.encode() for kind in get_args(Metric) if kind not in get_args(Value)
)
_TOO_LARGE = re.compile(rb"[0-9]{309}")


def _decode_metric(line: bytes) -> Any:
    if _TOO_LARGE.search(line):
        raise msgspec.DecodeError("it has a number of more than 308 digits, which no double holds")
    return _decode_finite(line)


class EventFollower:
    """The events of a run as they come.

    Attributes:
        events: all events so far, in the order of time.
    """

    def __init__(self, paths: RunPaths, on_damage: Told) -> None:
        self._set: TailSet[Event] = TailSet(
            Tree(paths.root / "events", 1, ".jsonl"), lambda _: _decode_event, on_damage
        )
        self.events: list[Event] = []

    def poll(self) -> list[Event]:
        """Returns the events that are new since the last poll, in the order of time."""
        self._set.discover()
        fresh = list(heapq.merge(*self._set.iterators(), key=lambda event: event.t))
        if fresh:
            self.events = sorted(self.events + fresh, key=lambda event: event.t)
        return fresh


class MetricFollower:
    """The metrics of a run as they come.

    Args:
        paths: the run.
        on_damage: told of what is left out.
        selector: which streams.
    """

    def __init__(self, paths: RunPaths, on_damage: Told, selector: Selector | None = None) -> None:
        chosen = selector or Selector()

        def decode_for(path: Path) -> Callable[[bytes], tuple[Stream, Metric]] | None:
            stream = stream_of(path)
            return (lambda line: (stream, _decode_metric(line))) if chosen.matches(stream) else None

        self._set = TailSet(Tree(paths.root / "metrics", 3, ".jsonl"), decode_for, on_damage)

    def poll(self) -> Iterator[tuple[Stream, Metric]]:
        """Yields the metrics that are new since the last poll, file by file."""
        self._set.discover()
        for records in self._set.iterators():
            yield from records


class ValueFollower:
    """The values of a run that are logged, as they come. The lines of its other metrics are passed over unread.

    Args:
        paths: the run.
        on_damage: told of what is left out.
    """

    def __init__(self, paths: RunPaths, on_damage: Told) -> None:
        def decode_for(path: Path) -> Callable[[bytes], tuple[Stream, Metric] | None] | None:
            stream = stream_of(path)
            if stream.name in (HOST, PLATFORM):
                return None
            return lambda line: None if line.startswith(_OTHERS) else (stream, _decode_metric(line))

        self._set = TailSet(Tree(paths.root / "metrics", 3, ".jsonl"), decode_for, on_damage)

    def poll(self) -> Iterator[tuple[Stream, Value]]:
        """Yields the values that are new since the last poll, file by file."""
        self._set.discover()
        for records in self._set.iterators():
            for record in records:
                if record is not None and isinstance(record[1], Value):
                    yield record[0], record[1]


class NewestValues:
    """The newest values of a run by now: what was read is not read again. Threads may share it.

    Args:
        paths: the run.
        on_damage: told of what is left out.
    """

    def __init__(self, paths: RunPaths, on_damage: Told) -> None:
        self._follower = ValueFollower(paths, on_damage)
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[float, Stream, ValueSecond]] = {}
        self._finite: dict[tuple[Stream, str, str], bool] = {}  # the last of each stream's metric and program

    def seconds(self) -> dict[str, ValueSecond]:
        """Returns the newest second of every metric, by name."""
        with self._lock:
            self._take()
            return {name: second for name, (_, _, second) in self._newest.items()}

    def last(self) -> dict[str, float]:
        """Returns the newest value of every metric, by name; NaN where a program's last one was no finite number."""
        with self._lock:
            self._take()
            broken = {name: math.nan for (_, name, _), finite in self._finite.items() if not finite}
            return {name: second.last for name, (_, _, second) in self._newest.items()} | broken

    def _take(self) -> None:
        for stream, second in self._follower.poll():
            self._finite[stream, second.name, second.stream] = isinstance(second, ValueSecond)
            if isinstance(second, ValueSecond):
                held = self._newest.get(second.name)
                if held is None or (second.t, stream) >= held[:2]:
                    self._newest[second.name] = (second.t, stream, second)


class Run:
    """One run on disk. Every question looks at the files again, so the answer is of now.

    Args:
        paths: the run's directory.
        alive: says whether what answers for the run still does. By default the header does, as far as it can be seen
            from this machine. Whoever may ask engines gives `headrace.engines.asking.AskEngine`.

    Attributes:
        paths: the run's directory.
        values: the newest of what is logged.
    """

    def __init__(self, paths: RunPaths, alive: Alive | None = None) -> None:
        self.paths = paths
        self.values = NewestValues(paths, self.on_damage)
        self._alive = alive
        self._damage: dict[Damage, None] = {}
        self._newer: dict[str, dict[str, int]] = {}  # by kind and file: records

    @classmethod
    def open(cls, name_or_id: str, runs_dir: Path | None = None, alive: Alive | None = None) -> Run:
        """Returns the run of that id, or the newest run of the job of that name.

        Args:
            name_or_id: which.
            runs_dir: directory of all runs; None for the user's.
            alive: see `Run`.

        Raises:
            RunNotFound: if there is none.
        """
        return cls(find_run(name_or_id, runs_dir), alive)

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def id(self) -> str:
        """The run id."""
        return self.paths.id

    @property
    def header(self) -> RunHeader:
        """The header, run.json. Raises OSError or msgspec.DecodeError when it is missing or damaged."""
        return read_header(self.paths)

    def on_damage(self, damage: Damage | Newer) -> None:
        """Remembers what was left out, once, however often the files are read."""
        if isinstance(damage, Damage):
            self._damage[damage] = None
        else:
            files = self._newer.setdefault(damage.kind, {})
            files[damage.path] = max(files.get(damage.path, 0), damage.count)

    @property
    def damage(self) -> list[Damage]:
        """What could not be read so far: damaged lines, and the kinds of records that only a newer headrace knows."""
        newer = []
        for kind, files in self._newer.items():
            count = sum(files.values())
            records = f"{count} record{'' if count == 1 else 's'} of {kind}"
            newer.append(Damage(str(self.paths.root), 0, f"{records} left out: written by a newer headrace"))
        with contextlib.suppress(OSError, msgspec.DecodeError):  # without a header there is no version
            if (version := self.header.version) < RECORD_VERSION:
                told = f"a record of version {version}, from before the first release: its causes are not read"
                newer.append(Damage(str(self.paths.root), 0, told))
        return [*self._damage, *newer]

    @property
    def supervised(self) -> bool:
        """Whether what answers for the run still does: a process that lives, or its engine. Of a copy it is taken so
        until its record has the end."""
        try:
            return is_copy(self.paths) or supervisor_alive(self.header) if self._alive is None else self._alive(self)
        except (OSError, msgspec.DecodeError):
            return False

    @property
    def known_until(self) -> float | None:
        """Of a copy that is not complete, when its newest part was stored, seconds since the epoch: nobody here knows
        what came later. None of every other run."""
        try:
            copied = read_copied(self.paths)
        except UsageError:  # told by who brings the copy up to date; see `AskEngine`
            return None
        return None if copied is None or copied.complete else copied.t or None

    def present(self, now: float) -> float:
        """Returns until when clocks count that still run: now, or what `known_until` says."""
        until = self.known_until
        return now if until is None else until

    def silent_seconds(self, now: float) -> float | None:
        """Returns for how long a copy that is not complete has had nothing new; None of every other run."""
        until = self.known_until
        return None if until is None else max(0.0, round(now - until, 3))

    def events(self) -> list[Event]:
        """Returns all events of all writers, in the order of time."""
        follower = EventFollower(self.paths, self.on_damage)
        follower.poll()
        return follower.events

    @property
    def artefacts(self) -> tuple[ArtefactsStored, ...]:
        """What of the run was stored where, with sizes and clashes: the last event for each."""
        return self.state().artefacts

    def state(self) -> RunState:
        """Returns status, cause, times and programs, all of one moment."""
        supervised = self.supervised  # before the events: a supervisor writes `run_finished` and then ends
        return state_of(self.events(), supervised)

    @property
    def status(self) -> Status:
        """SageMaker's status."""
        return self.state().status

    @property
    def cause(self) -> Cause | None:
        """The first thing that went wrong, None if nothing did."""
        return self.state().cause

    @property
    def degraded(self) -> bool:
        """Whether the data service lost workers or servers while the job went on."""
        return self.state().degraded

    @property
    def over(self) -> bool:
        """Whether the record holds the end of the run, as `last_word` says; nobody else is asked."""
        return last_word(self.events()) is not None

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        return self.state().finished

    @property
    def started(self) -> float | None:
        """When the programs were started, seconds since the epoch; None if they were not."""
        return self.state().started

    @property
    def ended(self) -> float | None:
        """When the run ended, seconds since the epoch; None while it goes on."""
        return self.state().ended

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs, in the order of their start."""
        return self.state().programs

    def streams(self) -> list[Stream]:
        """Returns the streams that have a log or a program, sorted."""
        logs = {stream_of(path) for path in Tree(self.paths.root / "logs", 3, ".log").new()}
        return sorted(logs | {program.stream for program in self.programs})

    def metrics(self, selector: Selector | None = None) -> dict[Stream, list[Metric]]:
        """Returns the metrics of every stream, each in the order of its file.

        Args:
            selector: which streams; None for all.
        """
        found: dict[Stream, list[Metric]] = {}
        for stream, metric in MetricFollower(self.paths, self.on_damage, selector).poll():
            found.setdefault(stream, []).append(metric)
        return found

    def host_seconds(self) -> dict[Stream, list[HostSecond]]:
        """Returns the metrics of the hosts."""
        return of_kind(self.metrics(Selector(name=HOST)), HostSecond)

    def logs(
        self,
        selector: Selector | str | None = None,
        follow: bool = False,
        on_idle: Callable[[], None] | None = None,
        last: int | None = None,
    ) -> Iterator[LogLine]:
        """Yields log lines of all selected streams, merged by time.

        Args:
            selector: which streams: a `Selector`, or ``group[/host[/rank]]``; None for all.
            follow: wait for further lines and streams until the run has finished and all is read. When the engine
                was killed the iteration ends too; `status` and `cause` then say so.
            on_idle: called before every wait for further lines, e.g. to flush what was shown.
            last: of the lines that a stream has now, only the last so many; None for all.

        Raises:
            UsageError: if no stream matches in a run that has finished.
        """
        chosen = selector_of(selector)
        follower = LogFollower(self.paths, chosen, self.on_damage, last)
        if follow:
            yield from self._follow(follower, on_idle)
        else:
            yield from follower.poll(final=True)
        if not follower.streams and chosen != Selector() and self.finished:
            self.require(chosen)

    def require(self, selector: Selector) -> None:
        """Raises UsageError, with the known names, if no stream of the run matches."""
        streams = self.streams()
        if not any(selector.matches(stream) for stream in streams):
            known = ", ".join(str(stream) for stream in streams[:12]) or "no program has written anything"
            raise UsageError(f"run {self.id} has no logs of {selector}", hint=f"known: {known}")

    def _follow(self, follower: LogFollower, on_idle: Callable[[], None] | None) -> Iterator[LogLine]:
        end = EndOfRun(self)
        while True:
            final = end.reached()
            for line in follower.poll(final):
                end.noticed()
                yield line
            if final:
                return
            if on_idle is not None:
                on_idle()
            time.sleep(POLL_SECONDS)


class EndOfRun:
    """Says when a run has finished and its files will not grow any more.

    With `run_finished` this is at once. Without a supervisor the agents may still write for a moment: it waits for
    half a second without news, and at most five seconds.

    Args:
        run: the run.
        events: a follower of its events that others use too; None for one of its own.

    Attributes:
        run: the run.
    """

    def __init__(self, run: Run, events: EventFollower | None = None) -> None:
        self.run = run
        self._events = EventFollower(run.paths, run.on_damage) if events is None else events
        self._poll_events = events is None
        self._seen = 0
        self._word = False
        self._died: float | None = None
        self._news = 0.0

    def noticed(self) -> None:
        """The caller saw something new."""
        self._news = time.monotonic()

    def reached(self) -> bool:
        """Returns whether everything that will ever be written is in the files now."""
        supervised = self.run.supervised
        if self._poll_events:
            self._events.poll()
        if len(self._events.events) != self._seen:
            self._seen = len(self._events.events)
            self._word = last_word(self._events.events) is not None
        if self._word:
            return True
        if supervised:
            self._died = None
            return False
        now = time.monotonic()
        if self._died is None:
            self._died = self._news = now
        return now - self._news >= _AFTER_DEATH or now - self._died >= _AFTER_DEATH_MAX


def of_kind(metrics: Mapping[Stream, Sequence[Metric]], kind: type[M]) -> dict[Stream, list[M]]:
    """Returns the metrics of one kind, of the streams that have some."""
    chosen = {stream: [metric for metric in found if isinstance(metric, kind)] for stream, found in metrics.items()}
    return {stream: found for stream, found in chosen.items() if found}


def selector_of(selector: Selector | str | None) -> Selector:
    """Returns what a selector says as text, and all streams for None or an empty text. Raises UsageError."""
    if selector is None or selector == "":
        return Selector()
    return parse_selector(f"run/{selector}")[1] if isinstance(selector, str) else selector


def list_runs(runs_dir: Path | None = None, alive: Alive | None = None) -> list[Run]:
    """Returns all runs, oldest first; `alive`: see `Run`."""
    return [Run(paths, alive) for paths in list_paths(runs_dir)]

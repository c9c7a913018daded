"""What `headrace run` shows: the plan in brief, log lines, events worth knowing, progress, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from headrace.cli.views.plan_document import brief
from headrace.cli.views.terminal import Terminal
from headrace.insight.render.plain_text import duration
from headrace.instance.launch_plan import LaunchPlan
from headrace.job.run_handle import tell_unseen
from headrace.name_order import by_number
from headrace.runs import ArtefactsStored, Event, LoaderSecond, LogLine, Metric, Run, Status, Stream, read_plan
from headrace.runs.cause import in_words
from headrace.runs.event_text import counted, files_left, losses, record_text, told
from headrace.runs.events import (
    ChannelProgress,
    FilesLeft,
    ProgramStarted,
    SecondaryStatus,
    StatusChanged,
)
from headrace.runs.run_paths import AGENT, RunPaths

LAST_LINES = 10
CLASHES = 10  # that are named
LEFT = 6  # lines about files that are not kept


class RunScreen:
    """The screen of one run.

    Args:
        terminal: where to write.
        quiet: only the end.
        verbose: what the agents log too.
        record: where the job stores its record, ``s3://bucket/prefix``; empty for nowhere.
    """

    def __init__(self, terminal: Terminal, quiet: bool = False, verbose: bool = False, record: str = "") -> None:
        self._terminal = terminal
        self._quiet = quiet
        self._verbose = verbose
        self._record = record
        self._progress = Progress()
        self._created = 0.0

    def begin(self, run: Run) -> None:
        """Shows which run this is, and its plan in brief."""
        self._created = run.header.created
        self._terminal.on_failure = partial(tell_unseen, run.id)
        if self._quiet:
            return
        self._terminal.write(f"run {run.id}")
        for line in brief(read_plan(run.paths, LaunchPlan)):
            self._terminal.write(f"  {line}")
        if self._record:
            self._terminal.write(f"  {fetch_line(self._record, run.id)}")
        self._terminal.flush()

    def event(self, event: Event) -> None:
        """Shows an event if it is worth knowing."""
        if self._quiet:
            return
        pending = isinstance(event, StatusChanged) and event.status is SecondaryStatus.PENDING
        first = isinstance(event, StatusChanged) and not (self._progress.part or pending)  # it is over at once
        if isinstance(event, StatusChanged):
            self._progress.part = event.message
        elif isinstance(event, ChannelProgress):
            self._progress.staged(event)
        elif isinstance(event, ProgramStarted):
            self._progress.heard(event.t)
        text = told(event)
        if text and not first:
            self._say(text)

    def metric(self, stream: Stream, metric: Metric) -> None:
        """Takes a metric into the progress line."""
        self._progress.add(stream, metric)

    def log(self, line: LogLine) -> None:
        """Shows a line of a program."""
        if line.stream.name != AGENT:
            self._progress.heard(line.t)
        if not self._quiet and (self._verbose or line.stream.name != AGENT):
            self._terminal.log(line)

    def stopping(self, now: bool) -> None:
        """Says that the run is being stopped."""
        self._say("killing" if now else "stopping (Ctrl-C again to kill)")

    def storing(self) -> None:
        """Says what is waited for when the run has finished."""
        self._terminal.below("")
        if self._record and not self._quiet:
            self._say(f"storing the end of the record in {self._record} (Ctrl-C ends this)")

    def tick(self, now: float) -> None:
        """Renews the progress line."""
        if not self._quiet:
            self._terminal.below(self._progress.text(now - self._created, now))
        self._terminal.flush()

    def end(self, run: Run, hint_after: Callable[[Sequence[str]], str] = lambda lines: "") -> None:
        """Shows how the run ended, why, and what to ask next.

        Args:
            run: the run.
            hint_after: see `headrace.job.Job.hint_after`.
        """
        state = run.state()
        self._terminal.below("")
        if not self._quiet:
            for damage in run.damage:
                self._say(str(damage))
        if state.cause is not None and state.status is not Status.COMPLETED:
            lines = state.cause.last_lines[-LAST_LINES:]
            if lines:
                self._terminal.write(f"last lines of {state.cause.place or 'the job'}:")
            for line in lines:
                self._terminal.write(f"  | {line}")
        took = f" after {duration(state.ended - self._created)}" if state.ended is not None else ""
        degraded = f" (degraded: {losses(state.lost)})" if state.degraded else ""
        why = f": {state.cause}" if state.cause is not None else ""
        self._terminal.write(f"{run.id}: {state.status.value}{took}{degraded}{why}")
        if state.cause is not None and (hint := hint_after(state.cause.last_lines)):
            self._terminal.write(f"hint: {hint}")
        for line in artefact_lines(state.artefacts):
            self._terminal.write(f"  {line}")
        for line in files_left_lines(state.files_left, run.paths):
            self._terminal.write(f"  {line}")
        if state.record_not_stored is not None:
            self._terminal.write(f"  warning: {record_text(state.record_not_stored)}")
        self._terminal.write(f"  headrace report {run.id}")
        silent = state.status is Status.FAILED and next(iter(run.logs()), None) is None
        self._terminal.write(f"  headrace logs {run.id}{' --platform' if silent else ''}")
        self._terminal.flush()

    def _say(self, text: str) -> None:
        self._terminal.write(f"headrace: {text}")
        self._terminal.flush()


def fetch_line(record: str, run_id: str) -> str:
    """Returns where a run's record goes, and what to type to read it elsewhere.

    >>> fetch_line("s3://bkt/runs", "my-job-20261120-190102-1a2b")
    'record: headrace fetch s3://bkt/runs/my-job-20261120-190102-1a2b -f'
    """
    return f"record: headrace fetch {record}/{run_id} -f"


def artefact_lines(artefacts: Iterable[ArtefactsStored]) -> Iterator[str]:
    """Yields what was stored where, and the names under which several hosts wrote different files."""
    for stored in artefacts:
        whose = " of this job" if stored.name == "checkpoints" else ""  # others may be at that place too
        files = counted(stored.files, "file")
        yield f"{stored.name}: {stored.uri} ({files}{whose}, {stored.bytes / 2**20:.1f} MiB)"
        for clash in stored.clashes[:CLASHES]:
            dropped = ", ".join(clash.dropped)
            yield f"warning: {stored.name}: {clash.path} differs: that of {clash.kept} was kept, not that of {dropped}"
        if stored.clash_count > CLASHES:
            yield f"warning: {stored.name}: {stored.clash_count - CLASHES} more files differ between hosts"
        if stored.left_out:
            yield f"warning: {stored.name}: left out, no files: {', '.join(stored.left_out[:CLASHES])}"


def files_left_lines(left: Sequence[FilesLeft], paths: RunPaths) -> Iterator[str]:
    """Yields what was written where nothing is kept: first what is lost, by host."""
    for event in sorted(left, key=lambda event: (not event.gone, by_number(event.host)))[:LEFT]:
        yield files_left(event, paths)
    if len(left) > LEFT:
        yield f"{len(left) - LEFT} more lines like these: headrace status {paths.id}"


def outcome(run: Run, exit_code: int) -> dict[str, object]:
    """Returns what ``headrace run --output json`` prints."""
    state = run.state()
    return {
        "run_id": run.id,
        "run_dir": str(run.paths.root),
        "status": state.status,
        "exit_code": exit_code,
        "cause": in_words(state.cause),
        "degraded": state.degraded,
        "started": state.started,
        "ended": state.ended,
    }


_SILENT = 60.0  # seconds without output or step from which the line says so
_RECENT = 5.0  # seconds after which the last record of a rank says nothing about now


@dataclass
class Progress:
    """What the loaders of all ranks have done so far.

    The loader shown is ``train`` once it has reported, else the one that reported last. Ranks move in step, so the
    steps are those of the furthest rank; samples/s are added over the ranks, data wait is of all their step time.

    Attributes:
        part: what the run is at, in words.
    """

    part: str = ""
    _steps: dict[tuple[str, Stream], int] = field(default_factory=dict)
    _last: dict[tuple[str, Stream], LoaderSecond] = field(default_factory=dict)
    _loader: str = ""
    _download: ChannelProgress | None = None
    _heard: float = 0.0

    def heard(self, t: float) -> None:
        """Takes a sign of life of a program, of the time `t`: its start, a line, a step."""
        self._heard = max(self._heard, t)

    def staged(self, event: ChannelProgress) -> None:
        """Takes the progress of a channel; a complete one is not shown any more."""
        self._download = event if event.files < event.files_total else None

    def add(self, stream: Stream, metric: Metric) -> None:
        """Takes in one metric."""
        if not isinstance(metric, LoaderSecond):
            return
        self.heard(metric.t)
        key = (metric.loader, stream)
        self._steps[key] = self._steps.get(key, 0) + metric.steps
        self._last[key] = metric
        if self._loader != "train":
            self._loader = metric.loader

    def text(self, elapsed: float, now: float) -> str:
        """Returns the line.

        Args:
            elapsed: seconds since the run was made.
            now: seconds since the epoch.
        """
        parts = [duration(elapsed)]
        if self._download is not None:
            here = self._download
            files = f"{here.files}/{here.files_total} files"
            parts.append(f"channel {here.channel}: {files}, {here.bytes / 1e6:.0f}/{here.bytes_total / 1e6:.0f} MB")
        steps = [count for (loader, _), count in self._steps.items() if loader == self._loader]
        if not steps and self.part:
            parts.append(self.part)
        if steps:
            parts.append(f"{max(steps)} steps")
        recent = [
            second
            for (loader, _), second in self._last.items()
            if loader == self._loader and now - second.t <= _RECENT and second.step > 0
        ]
        if recent:
            from headrace.insight.figures.columns import DATA_WAIT, SAMPLES_PER_SECOND  # NumPy, once there are steps

            rates = [SAMPLES_PER_SECOND.of_records([second]) or 0.0 for second in recent]
            if any(rates):
                parts.append(f"{sum(rates):.1f} samples/s")
            parts.append(f"data wait {DATA_WAIT.of_records(recent):.1f} %")
        if self._heard and now - self._heard >= _SILENT:
            parts.append(f"no output and no step for {duration(now - self._heard)}")
        return "  ".join(parts)

"""Records of runs in which something else lies in the place of a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from headrace.runs import EventWriter, LogWriter, MetricWriter, RunPaths, Status, Stream, ValueSecond, create_run
from headrace.runs.events import InstancesStarted, JobStarted, RunFinished

RANK = Stream("g", "algo-1", "0")


def written(runs: Path, name: str) -> RunPaths:
    """A run that has ended, with an event, a metric, a log line and the files that its start leaves."""
    paths = create_run(name, runs=runs)
    now = time.time()
    with EventWriter(paths.events("engine")) as events:
        events.write(InstancesStarted(t=now, hosts={"g": ("algo-1",)}))
        events.write(JobStarted(t=now))
        events.write(RunFinished(t=now + 1, status=Status.COMPLETED, cause=None))
    with MetricWriter(paths.metrics(RANK)) as metrics:
        metrics.write(ValueSecond(t=now, name="loss", stream="0", count=1, total=1.0, low=1.0, high=1.0, last=1.0))
    with LogWriter(paths.log(RANK)) as log:
        log.write_line("o", b"a line", now)
    for file in (paths.job, paths.plan, paths.request):
        file.write_text("{}")
    return paths


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 30)


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "100 GB of nothing": sparse,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file of others": lambda path: path.symlink_to("/etc/hostname"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a folder": Path.mkdir,
    "JSON that is nested too deep": lambda path: path.write_text("[" * 200_000 + "\n"),
    "a line without an end": lambda path: path.write_text('{"' + "a" * (4 << 20)),
    "commands for a terminal": lambda path: path.write_text('{"type": "\x1b]0;x\x07\x9b31m\u202e"}\n\x1b[2J\x9b2J\n'),
    "no text": lambda path: path.write_bytes(bytes(range(256)) * 16),
    "nothing": Path.touch,
}


def files_of(paths: RunPaths) -> list[Path]:
    """Files of a record, the header (without which nothing is a run) among them."""
    return sorted(path for path in paths.root.rglob("*") if path.is_file() and "lock" not in path.name)


def hostile_runs(runs: Path, kind: str) -> list[RunPaths]:
    """Makes runs that have ended, each with something of this kind in the place of another one of its files."""
    made = [written(runs, "r0")]
    made += [written(runs, f"r{number}") for number in range(1, len(files_of(made[0])))]
    for number, paths in enumerate(made):
        file = files_of(paths)[number]
        file.unlink()
        KINDS[kind](file)
    return made

"""What the probe of a trial has written, read back: one folder, one file of JSON lines a process.

The records are made by `headrace.measuring.watch` and `.hooks`; each has a `kind`. A line that is not complete
yet, or that a killed process has cut, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec


class _Record(msgspec.Struct, frozen=True, tag_field="kind"):
    pid: int


class Python(_Record, frozen=True, tag="python"):
    """A Python process that has the probe."""


class Imported(_Record, frozen=True, tag="imported"):
    """It has imported a module with a loader."""

    module: str


class Rank(_Record, frozen=True, tag="rank"):
    """It iterates over a loader. `cores`: those that it may use."""

    argv: list[str]
    rank: int
    world_size: int
    cores: float


class Loader(_Record, frozen=True, tag="loader"):
    """One loader.

    Attributes:
        loader, name: its number in the process, and over all processes.
        type, dataset: classes.
        samples: length of the dataset, None if unknown.
        map_style: False for an IterableDataset.
        batch_size: None when a batch sampler decides, or without batches.
        workers, persistent, start_method: as its arguments say.
        auto: it chooses the number of its workers itself, and `workers` is the most.
        remote: headrace's own, with workers on other hosts.
        training: its loop computes gradients.
    """

    loader: int
    name: str
    type: str
    dataset: str
    samples: int | None
    map_style: bool
    batch_size: int | None
    workers: int
    auto: bool
    persistent: bool
    start_method: str
    remote: bool
    training: bool


class Step(NamedTuple):
    """One step, seconds.

    Attributes:
        wait: blocked in `next()`; in the first step of a pass also in `iter()`.
        step: from one `next()` to the following one.
        rows: samples.
        first: the first of a pass.
        copying: part of `wait` in which a kept batch was copied for the replay.
        cpu: CPU seconds of the training process during `wait`.
    """

    wait: float
    step: float
    rows: int
    first: bool
    copying: float
    cpu: float


class Steps(_Record, frozen=True, tag="steps"):
    """Steps of a phase. `total`: of the loader so far."""

    loader: int
    phase: str
    total: int
    steps: list[Step]


class Phase(_Record, frozen=True, tag="phase"):
    """A phase that is complete, or the measured steps of a script that has ended at the end of a pass.

    Attributes:
        started, ended: seconds since the epoch.
        seconds, cpu: wall seconds, and CPU seconds of the training process without its workers.
        worker_cpu: CPU seconds of the workers, from a loader that knows them.
        executors: workers at its end, from such a loader.
        cuda: whether the script uses CUDA, so that work of the device overlaps.
        replayed, why_not: whether batches were replayed, and why they could not be.
    """

    loader: int
    phase: str
    total: int
    started: float
    ended: float
    seconds: float
    cpu: float
    worker_cpu: float | None
    executors: int | None
    cuda: bool
    replayed: bool
    why_not: str


class Batch(_Record, frozen=True, tag="batch"):
    """What a batch is made of; `tree` as `headrace.measuring.facts.describe` gives it."""

    loader: int
    bytes: int
    tree: list[object]


class Fetch(_Record, frozen=True, tag="fetch"):
    """A worker process has made a batch: wall and CPU seconds, samples."""

    loader: str
    wall: float
    cpu: float
    rows: int


Record = Python | Imported | Rank | Loader | Steps | Phase | Batch | Fetch
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


@dataclass
class LoaderTrial:
    """All that is known of one loader of one process."""

    loader: Loader
    steps: dict[str, list[Step]] = field(default_factory=dict)
    phases: dict[str, Phase] = field(default_factory=dict)
    batch: Batch | None = None
    fetches: list[Fetch] = field(default_factory=list)
    total: int = 0


@dataclass
class RankTrial:
    """All that is known of one training process."""

    rank: Rank
    loaders: list[LoaderTrial] = field(default_factory=list)


@dataclass
class Observation:
    """All that is known of a trial.

    Attributes:
        pythons: Python processes that had the probe.
        imported: modules with loaders that were imported.
        ranks: processes that iterated over a loader, by rank.
    """

    pythons: int
    imported: set[str]
    ranks: list[RankTrial]


def records(folder: Path) -> Iterator[list[Record]]:
    """Reads the records of every process so far."""
    for path in sorted(folder.glob("*.jsonl")):
        found: list[Record] = []
        for line in path.read_bytes().splitlines():
            try:
                found.append(_decoder.decode(line))
            except msgspec.DecodeError:
                continue  # cut off in the middle
        yield found


def read_trial(folder: Path) -> Observation:
    """Reads what was observed so far."""
    ranks: dict[int, RankTrial] = {}
    trials: dict[str, LoaderTrial] = {}
    fetches: dict[str, list[Fetch]] = {}
    pythons, imported = 0, set()
    for process in records(folder):
        own: dict[int, LoaderTrial] = {}
        made = [record for record in process if isinstance(record, Fetch)]
        for fetch in made[1:] or made:  # a worker's first batch pays for its start
            fetches.setdefault(fetch.loader, []).append(fetch)
        for record in process:
            if isinstance(record, Python):
                pythons += 1
            elif isinstance(record, Imported):
                imported.add(record.module)
            elif isinstance(record, Rank):
                ranks[record.pid] = RankTrial(record)
            elif isinstance(record, Loader):
                own[record.loader] = trials[record.name] = LoaderTrial(record)
                ranks[record.pid].loaders.append(own[record.loader])
            elif isinstance(record, Steps):
                trial = own[record.loader]
                trial.steps.setdefault(record.phase, []).extend(record.steps)
                trial.total = max(trial.total, record.total)
            elif isinstance(record, Phase):
                own[record.loader].phases[record.phase] = record
                own[record.loader].total = max(own[record.loader].total, record.total)
            elif isinstance(record, Batch):
                own[record.loader].batch = record
    for name, found in fetches.items():
        if name in trials:
            trials[name].fetches = found
    return Observation(pythons, imported, sorted(ranks.values(), key=lambda one: (one.rank.rank, one.rank.pid)))

"""The report of a trial: what its probe has written, what that means, and what to do.

A trial is one folder, one file of JSON lines a process. The records are made by `headrace.measuring.watch` and
`.hooks`; each has a `kind`. A line that is not complete yet, or that a killed process has cut, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.insight.figures.columns import DATA_WAIT, STEP_TIME
from headrace.insight.figures.figure import FIGURES, Declared, Figure, Window, missing, spread_of
from headrace.insight.offload_decision import (
    HEADROOM,
    NEARLY,
    PROCESSES_PER_CORE,
    Advice,
    Case,
    OffloadDecision,
    Transfer,
    decide,
    local_capacity,
)
from headrace.insight.performance_model import RATE_FORMULA


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
        workers, start_method: as its arguments say.
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
    """What a batch is made of; `tree` as `headrace.measuring.batches.describe` gives it."""

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


LEAST_STEPS = 3
"""Fewer measured steps than this are no measurement."""

_LEAST_ASKED = 4  # --steps
_BEYOND_WAIT = 1.25
_MANY_BYTES = 4_000_000
_FLOATS = {"float32": (4, "<f4"), "float64": (8, "<f8")}
"""Bytes of an element, and NumPy's name of it."""
_CUT_SHORT = (
    "the script ended before the trial was over, so this is judged by {} steps{}, and the step floor is an estimate: a "
    "whole trial takes {}; give it {}"
)
_TRAINING = "the steps of --warmup, twice --steps and 12 more"
_EVALUATION = "three times the steps of --warmup, four times --steps and 12 more in a loop without gradients"

WIRES = (10, 25, 100)
"""Gbit/s for which the limit of the wire is shown."""

TRIAL_FIGURES: dict[str, Declared] = {
    "steps": Declared("1", "measured steps", "steps of the measured part of the trial"),
    "batch_size": Declared("1", "samples a batch", "samples of these steps / steps"),
    "step_time": FIGURES["step_time"]._replace(formula=f"{STEP_TIME.ratio}, measured steps; a step lasts from one "
        "next() to the following one of the same pass, the first one of a pass begins with iter()"),
    "data_wait": Declared("%", "stall (data wait)", f"{DATA_WAIT.ratio}, measured steps; wait is the time blocked in "
        "next()"),
    "step_floor": Declared("ms", "step floor", "replayed: sum(step - copying) / steps of the replay, where copying "
        "(of the kept batch, in next()) is not taken off when CUDA is in use; not replayed: sum(step - wait) / steps "
        "of the measured steps, an estimate"),
    "best_gain": Declared("x", "best gain possible", "step_time / step_floor"),
    "sample_cpu": Declared("ms", "CPU a sample", "CPU seconds a sample: with workers, sum(cpu) / sum(samples) of "
        "torch's fetch() in the worker processes, each worker's first batch left out; with num_workers=0, CPU seconds "
        "of the process in next() / samples"),
    "sample_wall": Declared("ms", "worker time a sample", "as sample_cpu, in wall seconds of one worker"),
    "trainer_cores": Declared("cores", "training's own CPU", "CPU seconds of the training process (without its "
        "workers) / wall seconds, in the replay"),
    "local_capacity": Declared("1/s", "local capacity", "rate(most workers, free cores); free cores = (usable cores - "
        f"trainer_cores of all ranks) / ranks, most workers = {PROCESSES_PER_CORE} a core; {RATE_FORMULA}, with "
        "pause = sample_wall - sample_cpu"),
    "batch": Declared("bytes", "batch", "bytes of the tensors, arrays and strings of one batch"),
}  # fmt: skip
"""Every figure of a trial by its name, in the order in which they are shown."""

_FORMULAS: dict[str, str] = {
    **{name: declared.formula for name, declared in TRIAL_FIGURES.items()},
    "transfer_time": "wall seconds / batches, headrace's feed over TCP on loopback, one executor, a ready batch",
    "transfer_trainer_cpu": "CPU seconds of the loader's process and its receiver / batches, on loopback",
    "transfer_worker_cpu": "CPU seconds of the feed server and its executor / batches, on loopback",
    "wire_limit": "bytes * 8 / (Gbit/s * 1e9), a lower bound",
    "advice": (
        f"cores = {HEADROOM} * batch_size / step_floor * sample_cpu; workers = the fewest of which rate(workers, cores)"
        f" * step_floor >= batch_size, with {HEADROOM} * sample_cpu and {HEADROOM} * pause; where other hosts help, "
        f"workers here = the fewest that make {100 * NEARLY:.0f} % of what this machine can; the step is predicted as "
        "by headrace advise, with transfer_time as the network's limit: max(step_floor, making, wire)"
    ),
}


class ChosenWorkers(msgspec.Struct, frozen=True):
    """Workers of a loader that chooses their number itself: at the end of the measured steps, and at most."""

    last: int
    most: int


class RankReport(msgspec.Struct, frozen=True):
    """One rank's figures.

    Attributes:
        rank, pid: which.
        loader: the loader that is judged, in words.
        figures: measured, by name.
        verdict: what would be best for this rank.
        others: other loaders of the rank, in words.
        notes: what to know about the figures.
        chosen: its workers, where the loader chooses how many; None where the script says it.
    """

    rank: int
    pid: int
    loader: str
    figures: dict[str, Figure]
    verdict: OffloadDecision
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    chosen: ChosenWorkers | None = None


class Wire(msgspec.Struct, frozen=True):
    """The least time for a batch on a wire of `gigabits` a second."""

    gigabits: int
    milliseconds: float


class TrialReport(msgspec.Struct, frozen=True):
    """What a trial has found.

    Attributes:
        command: what was run.
        exit_code: of the command; negative for a signal.
        stopped: whether it was stopped after the trial.
        verdict: of the worst rank, cores and workers summed over the ranks.
        worst, worst_pid: its rank and process.
        ranks: all ranks.
        transfer: the cost of bringing a batch; None when it was not measured, and then `no_transfer` says why.
        wires: the least time for a batch.
        notes: what to know.
        formulas: how every figure is computed, by its name.
        crowded: the note that other programs had the machine's cores, which makes the advice unsure; else empty.
    """

    command: tuple[str, ...]
    exit_code: int
    stopped: bool
    verdict: OffloadDecision
    worst: int
    worst_pid: int
    ranks: tuple[RankReport, ...]
    transfer: Transfer | None
    no_transfer: str
    wires: tuple[Wire, ...]
    notes: tuple[str, ...]
    formulas: dict[str, str]
    crowded: str = ""


def judged(rank: RankTrial) -> LoaderTrial | None:
    """Returns the loader to judge: one that was replayed, else the training loader of the most steps."""
    usable = [one for one in rank.loaders if len(_measured(one)) >= LEAST_STEPS]
    return max(usable, key=lambda one: ("replay" in one.phases, one.loader.training, one.total), default=None)


def _measured(trial: LoaderTrial) -> list[Step]:
    """Returns the steps that are judged: where the script ended too early, those of the warm-up but the first."""
    phase = _measured_phase(trial)
    return trial.steps.get(phase, [])[phase == "warmup" :]


def _measured_phase(trial: LoaderTrial) -> str:
    return "measured" if len(trial.steps.get("measured", [])) >= LEAST_STEPS else "warmup"


def report(
    observation: Observation,
    command: Sequence[str],
    exit_code: int,
    *,
    stopped: bool,
    transfer: Transfer | None,
    no_transfer: str = "",
) -> TrialReport | None:
    """Judges a trial.

    Args:
        observation: what was observed.
        command: what was run.
        exit_code: how it ended.
        stopped: whether it was stopped after the trial.
        transfer: what a batch costs over TCP, if it was measured.
        no_transfer: why not.

    Returns:
        The report; None when no rank has a loader with enough steps.
    """
    found = [(rank, loader) for rank in observation.ranks if (loader := judged(rank)) is not None]
    if not found:
        return None
    cores = min(rank.rank.cores for rank, _ in found)
    busy = [_trainer_cores(loader) for _, loader in found]
    cut_short = all("replay" not in loader.phases for rank in observation.ranks for loader in rank.loaders)
    ranks = [
        _rank_report(rank, loader, cores / len(found), sum(busy) / len(found), transfer, cut_short=cut_short)
        for rank, loader in found
    ]
    worst = max(ranks, key=lambda one: one.figures["data_wait"].value or 0.0)
    size = max((loader.batch.bytes for _, loader in found if loader.batch is not None), default=0)
    return TrialReport(
        command=tuple(command),
        exit_code=exit_code,
        stopped=stopped,
        verdict=_of_all(worst.verdict, len(ranks)),
        worst=worst.rank,
        worst_pid=worst.pid,
        ranks=tuple(ranks),
        transfer=transfer,
        no_transfer=no_transfer,
        wires=tuple(Wire(gigabits, 1000 * size * 8 / (gigabits * 1e9)) for gigabits in WIRES) if size else (),
        notes=(
            *((f"figures of rank {worst.rank}, which waits the most of {len(ranks)} ranks",) if len(ranks) > 1 else ()),
            *((_cut_short([loader for _, loader in found]),) if cut_short else ()),
        ),
        formulas=_FORMULAS,
    )


def _cut_short(judged: Sequence[LoaderTrial]) -> str:
    trains = any(one.loader.training for one in judged)
    trial = min(judged, key=lambda one: one.total)
    warmup, steps = len(trial.steps.get("warmup", [])), _measured(trial)
    early = " of its warm-up" if _measured_phase(trial) == "warmup" else ""
    fewer = (trial.total - warmup - 12) // 2 if trains else (trial.total - 3 * warmup - 12) // 4
    instead = f"--steps {fewer}, or more data or epochs" if fewer >= _LEAST_ASKED else "more data or epochs"
    return _CUT_SHORT.format(len(steps), early, _TRAINING if trains else _EVALUATION, instead)


def _of_all(verdict: OffloadDecision, ranks: int) -> OffloadDecision:
    cores, workers = verdict.remote_cores * ranks, verdict.remote_workers * ranks
    return msgspec.structs.replace(verdict, remote_cores=cores, remote_workers=workers)


def _rank_report(
    rank: RankTrial,
    trial: LoaderTrial,
    cores: float,
    trainer_cores: float,
    transfer: Transfer | None,
    *,
    cut_short: bool,
) -> RankReport:
    steps = _measured(trial)
    seconds, waits = sum(step.step for step in steps), sum(step.wait for step in steps)
    rows = sum(step.rows for step in steps) / len(steps)
    floor, floor_note = _floor(trial)
    wall, cpu, why_no_cost = _cost(trial)
    window = _window(trial.phases.get(_measured_phase(trial)))
    first = sum(step.wait for step in steps if step.first)
    case = Case(
        rows=max(rows, 1.0),
        step=seconds / len(steps),
        wait=waits / len(steps),
        floor=max(floor, 1e-6),
        sample_wall=wall,
        sample_cpu=cpu,
        cores=cores,
        trainer_cores=trainer_cores,
        workers=_workers(trial),
        map_style=trial.loader.map_style,
        remote=trial.loader.remote,
        first_wait=first / waits if waits else 0.0,
        cut_short=cut_short,
    )
    capacity = local_capacity(case)
    no_capacity = (
        why_no_cost
        if trial.loader.map_style
        else "an IterableDataset, or lanes: unknown how its workers share the work"
    )
    size = None if trial.batch is None else float(trial.batch.bytes)
    cpu_ms, wall_ms = (None if cost is None else 1000 * cost for cost in (cpu, wall))
    figures = [
        _figure("steps", len(steps), window),
        _figure("batch_size", rows, window),
        msgspec.structs.replace(
            _figure("step_time", 1000 * case.step, window), spread=spread_of([1000 * step.step for step in steps])
        ),
        _figure("data_wait", DATA_WAIT.of_records(steps), window),
        _figure("step_floor", 1000 * floor, _window(trial.phases.get("replay")) or window, note=floor_note),
        _figure("best_gain", case.gain, window, note=floor_note),
        _figure("sample_cpu", cpu_ms, window, why_no_cost),
        _figure("sample_wall", wall_ms, window, why_no_cost),
        _figure("trainer_cores", trainer_cores, window),
        _figure("local_capacity", capacity, window, no_capacity or "a sample costs next to nothing"),
        _figure("batch", size, window, "no batch was kept"),
    ]
    cuda = any(phase.cuda for phase in trial.phases.values())
    notes = (
        *(("CUDA: data wait may overlap with the device's work; the gain does not count that",) if cuda else ()),
        *gain_note(case.wait / case.step, case.gain),
        *float_note(trial.batch),
    )
    return RankReport(
        rank=rank.rank.rank,
        pid=rank.rank.pid,
        loader=words(trial.loader),
        figures={figure.name: figure for figure in figures},
        verdict=decide(case, transfer),
        others=tuple(f"{words(one.loader)}: {one.total} steps" for one in rank.loaders if one is not trial),
        notes=notes,
        chosen=ChosenWorkers(case.workers, trial.loader.workers) if trial.loader.auto else None,
    )


def gain_note(wait: float, gain: float) -> tuple[str, ...]:
    """Returns why a gain is clearly more than the data wait explains; nothing where it is not.

    Args:
        wait: share of the step, 0 to 1.
        gain: step time / step floor.
    """
    alone = 1 / (1 - wait) if wait < 1 else gain
    if gain <= _BEYOND_WAIT * alone:
        return ()
    return (
        f"without its data wait, {100 * wait:.1f} %, a step would be {alone:.2f}x as fast, and with kept batches it is "
        f"{gain:.2f}x: while batches are made, their workers take CPU time from the training, too",
    )


def float_note(batch: Batch | None) -> tuple[str, ...]:
    """Returns that a batch would be smaller with bytes in place of floats; nothing where they are few, or no images."""
    floats = dict.fromkeys(_FLOATS, 0)
    for kind, size in _arrays([] if batch is None else batch.tree):
        floats[kind] += size
    worst = max(floats, key=lambda kind: floats[kind])
    if batch is None or floats[worst] < _MANY_BYTES or 2 * floats[worst] < batch.bytes:
        return ()
    times = _FLOATS[worst][0]
    return (
        f"{floats[worst] / 1e6:.1f} MB of a batch are {worst}: if these are images, send uint8 and normalise on the "
        f"device (`x.float().div_(255)` ...), for 1/{times} of the bytes",
    )


def _arrays(node: Sequence[object]) -> Iterable[tuple[str, int]]:
    """Returns kind and bytes of the arrays of floats with three dimensions or more, as `describe` has them."""
    kind, *rest = node or [""]
    if kind in ("t", "a"):
        dtype, shape = rest
        names = [name for name, (_, also) in _FLOATS.items() if dtype in (name, also)]
        if names and isinstance(shape, list) and len(shape) >= 3:
            yield names[0], math.prod(shape) * _FLOATS[names[0]][0]
    elif kind in ("l", "d"):
        children = rest[0]
        nodes = children.values() if isinstance(children, dict) else children
        for child in nodes if isinstance(nodes, Iterable) else ():
            yield from _arrays(child)


def _figure(name: str, value: float | None, window: Window | None, why_not: str = "", note: str = "") -> Figure:
    """Returns a figure of the trial. `why_not`: it has no value; `note`: what to know of one that has."""
    unit = TRIAL_FIGURES[name].unit
    return missing(name, why_not, unit) if value is None else Figure(name, unit, value, window, note=note)


def words(loader: Loader) -> str:
    """Names a loader, e.g. ``DataLoader(Images, batch_size=64, num_workers=4)``."""
    kind = loader.type.rpartition(".")[2]
    kind = f"headrace.feed.{kind}" if loader.type.startswith("headrace.") else kind
    size = "" if loader.batch_size is None else f"batch_size={loader.batch_size}, "
    workers = '"auto"' if loader.auto else loader.workers
    return f"{kind}({loader.dataset}, {size}num_workers={workers})"


def _window(phase: Phase | None) -> Window | None:
    return None if phase is None else Window(phase.started, phase.ended)


def _floor(trial: LoaderTrial) -> tuple[float, str]:
    """Returns the step floor in seconds, and what to know about it."""
    replayed, phase = trial.steps.get("replay", []), trial.phases.get("replay")
    if phase is not None and phase.replayed and replayed:
        off = 0.0 if phase.cuda else 1.0
        return sum(step.step - off * step.copying for step in replayed) / len(replayed), ""
    steps = _measured(trial)
    why = phase.why_not if phase is not None and phase.why_not else "the script ended before"
    return sum(step.step - step.wait for step in steps) / len(steps), f"estimated, batches were not replayed: {why}"


def _workers(trial: LoaderTrial) -> int:
    """Returns the workers that made the measured steps; those at their end, where the loader chooses how many."""
    phase = trial.phases.get(_measured_phase(trial))
    return phase.executors if trial.loader.auto and phase is not None and phase.executors else trial.loader.workers


def _trainer_cores(trial: LoaderTrial) -> float:
    phase = trial.phases.get("replay")
    if phase is not None and phase.replayed and phase.seconds > 0:
        return phase.cpu / phase.seconds
    phase, steps = trial.phases.get(name := _measured_phase(trial)), trial.steps.get(name, [])
    if phase is None or phase.seconds <= 0:
        return 0.0
    loading = 0.0 if trial.loader.workers else sum(step.cpu for step in steps)
    return max(0.0, phase.cpu - loading) / phase.seconds


def _cost(trial: LoaderTrial) -> tuple[float | None, float | None, str]:
    """Returns wall and CPU seconds of a sample, and why they are not known."""
    steps = _measured(trial)
    rows = sum(step.rows for step in steps)
    for names in ([_measured_phase(trial)], [*trial.phases]):  # all, if a short script's batches were made before
        cpu = sum(trial.phases[name].worker_cpu or 0.0 for name in names if name in trial.phases)
        if cpu and rows:
            made = sum(step.rows for name in names for step in trial.steps.get(name, []))
            return None, cpu / made, "headrace's loader tells CPU seconds only"
    if trial.loader.workers == 0 and not trial.loader.remote and rows:
        return sum(step.wait for step in steps) / rows, sum(step.cpu for step in steps) / rows, ""
    if trial.loader.start_method == "forkserver":
        return None, None, "workers of a forkserver cannot be told from those of another loader"
    made = sum(fetch.rows for fetch in trial.fetches)
    if made:
        return sum(f.wall for f in trial.fetches) / made, sum(f.cpu for f in trial.fetches) / made, ""
    return None, None, "no worker has told what a batch costs"


def advice_lines(verdict: OffloadDecision, chosen: ChosenWorkers | None) -> list[str]:
    """Returns what to do, one line an action.

    Args:
        verdict: what would be best.
        chosen: the workers of the judged loader, where it chooses how many.
    """
    lines = []
    if verdict.workers is not None:
        lines.append(_workers_here(verdict.workers, chosen))
    if verdict.advice in (Advice.REMOTE, Advice.HYBRID):
        lines.append(f"{verdict.remote_cores} cores with {verdict.remote_workers} executors on other hosts")
    return lines


def _workers_here(wanted: int, chosen: ChosenWorkers | None) -> str:
    """Returns what to do about the workers on this machine."""
    if chosen is None:
        return f'num_workers={wanted} on this machine (headrace.feed.DataLoader finds it itself: num_workers="auto")'
    here = f"{wanted} workers on this machine"
    if chosen.last >= wanted:
        return f'{here}: num_workers="auto" has found {chosen.last}, leave it so'
    had = f"it had {chosen.last} at the end of the measured steps"
    if chosen.most < wanted:
        return f"{here}: {had}, and may have {chosen.most} (feed.Auto(at_most=), or the cores of the process)"
    return f'{here}: leave num_workers="auto", {had} and adds more while that helps (--steps measures longer)'

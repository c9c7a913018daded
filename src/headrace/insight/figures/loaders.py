"""Figures of loaders, of one rank and of all ranks together: step time and its parts, samples a second."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from headrace.insight.figures.figure import WARM_UP_RECORDS, Figure, Window, missing, spread_of
from headrace.insight.figures.noise import added, as_noisy, confidence_of_ratio, share_range
from headrace.runs import LoaderSecond, Stream

_NO_ROWS = "the loader's batches do not tell how many samples they have: no tensor or array is in them"
_ONLY_WARM_UP = "the loader ran for about one second, which is left out as warm-up"


class LoaderReport(msgspec.Struct, frozen=True):
    """What one loader delivered, in one rank or (`ranks` > 1) in all of them.

    Attributes:
        loader: its name, e.g. ``train``.
        group, host, rank: where; empty for all ranks together.
        ranks: how many ranks it sums up.
        steps: of the whole run; of several ranks the most that one of them did: a step is one of all ranks together.
        samples: of the whole run; of several ranks those of all of them.
        step_time: mean duration of a step, ms; of several ranks the slowest decides, see `job_time`.
        samples_per_second: rate while steps last, by the same time.
        data_wait: share of the step time blocked in `next()`.
        h2d: share of the step time in which batches were copied to the device, beside the computation.
        compute: share of the step time in which the device worked; without CUDA what is left of the step, and its note
            says so.
        queue: batches that were ready when `next()` was called.
    """

    loader: str
    group: str
    host: str
    rank: str
    ranks: int
    steps: Figure
    samples: Figure
    step_time: Figure
    samples_per_second: Figure
    data_wait: Figure
    h2d: Figure
    compute: Figure
    queue: Figure


Seconds = Mapping[Stream, Sequence[LoaderSecond]]
Timed = Mapping[Stream, list[LoaderSecond]]


def by_loader(seconds: Seconds) -> dict[str, dict[Stream, list[LoaderSecond]]]:
    """Splits the metrics of ranks by loader name, in the order of first appearance."""
    found: dict[str, dict[Stream, list[LoaderSecond]]] = {}
    for stream in sorted(seconds, key=rank_order):
        for second in seconds[stream]:
            found.setdefault(second.loader, {}).setdefault(stream, []).append(second)
    return found


def rank_order(stream: Stream) -> tuple[int, Stream]:
    """Sort key: ranks by number, then all others."""
    return (int(stream.name) if stream.name.isdecimal() else 1 << 62, stream)


@dataclass(frozen=True)
class Training:
    """The loader that stands for the training.

    Attributes:
        name: its name.
        ranks: its records, by rank.
    """

    name: str
    ranks: dict[Stream, list[LoaderSecond]]

    @cached_property
    def window(self) -> Window | None:
        """From the end of the warm-up to the last record; None without a record after the warm-up."""
        return window_of(self.ranks)

    @cached_property
    def report(self) -> LoaderReport:
        """Its figures, all ranks together."""
        return loader_report(self.name, self.ranks)


def training_of(seconds: Seconds) -> Training | None:
    """Returns the main loader; None without loader metrics."""
    name = main_loader(seconds)
    return None if name is None else Training(name, by_loader(seconds)[name])


def main_loader(seconds: Seconds) -> str | None:
    """Returns the loader that stands for the training: ``train``, else the one with the most samples."""
    totals = {
        name: sum(second.samples for records in ranks.values() for second in records)
        for name, ranks in by_loader(seconds).items()
    }
    if "train" in totals:
        return "train"
    return max(totals, key=lambda name: totals[name], default=None)


def window_of(ranks: Seconds) -> Window | None:
    """Returns the training window of a loader: from the end of the warm-up to its last record, over all ranks."""
    kept = [records for records in ranks.values() if len(records) > WARM_UP_RECORDS]
    if not kept:
        return None
    return Window(min(records[WARM_UP_RECORDS - 1].t for records in kept), max(records[-1].t for records in kept))


def job_time(ranks: Seconds) -> tuple[Stream, float, int]:
    """Returns how long the steps of all ranks together took: the slowest decides.

    Ranks that wait for each other all have the same time and count. Of those that do not, the one whose steps last
    longest in sum ends the training, and everything that is paid runs until then.

    Args:
        ranks: their records, at least one.

    Returns:
        The rank whose steps lasted longest in sum, its seconds, and the steps of the rank that did most.
    """
    seconds = {stream: sum(second.step for second in records) for stream, records in ranks.items()}
    slowest = max(seconds, key=lambda stream: seconds[stream])
    return slowest, seconds[slowest], _most_steps(ranks)


def _most_steps(ranks: Seconds) -> int:
    return max((sum(second.steps for second in records) for records in ranks.values()), default=0)


def loader_report(name: str, ranks: Seconds) -> LoaderReport:
    """Returns the figures of one loader over one or more ranks. Pure.

    Args:
        name: name of the loader.
        ranks: its records, by rank.
    """
    one = next(iter(ranks)) if len(ranks) == 1 else Stream("", "", "")
    everything = [second for records in ranks.values() for second in records]
    whole = _whole(ranks)
    window = window_of(ranks)
    kept = {stream: list(records[WARM_UP_RECORDS:]) for stream, records in ranks.items()}
    # A record without steps (a stall of more than a second) has no per-second value; its sums are 0.
    timed = {stream: [s for s in records if s.steps and s.step > 0] for stream, records in kept.items()}
    pool = [second for records in timed.values() for second in records]
    return LoaderReport(
        loader=name,
        group=one.group,
        host=one.host,
        rank=one.name,
        ranks=len(ranks),
        steps=Figure("steps", "1", _most_steps(ranks), whole),
        samples=_samples(everything, whole),
        step_time=_step_time(timed, window),
        samples_per_second=_rate(timed, window),
        data_wait=_wait(timed, pool, window),
        h2d=_h2d(pool, window),
        compute=_compute(pool, window),
        queue=_queue(pool, window),
    )


def _whole(ranks: Seconds) -> Window | None:
    records = [second for seconds in ranks.values() for second in seconds]
    if not records:
        return None
    return Window(min(second.t - second.step for second in records), max(second.t for second in records))


def _samples(records: Sequence[LoaderSecond], whole: Window | None) -> Figure:
    count = sum(second.samples for second in records)
    if not count and any(second.steps for second in records):
        return missing("samples", "1", _NO_ROWS)
    return Figure("samples", "1", count, whole)


def _step_time(timed: Timed, window: Window | None) -> Figure:
    if not any(timed.values()):
        return missing("step_time", "ms", _ONLY_WARM_UP)
    slowest, seconds, steps = job_time(timed)
    mine = timed[slowest]
    value, own = 1000 * seconds / steps, 1000 * seconds / sum(second.steps for second in mine)
    spread = spread_of([value / own * 1000 * second.step / second.steps for second in mine])
    known = confidence_of_ratio([second.step for second in mine], [float(second.steps) for second in mine], scale=1000)
    return Figure("step_time", "ms", value, window, spread, confidence=as_noisy(value, own, known))


def _rate(timed: Timed, window: Window | None) -> Figure:
    if not timed or not all(timed.values()):
        return missing("samples_per_second", "1/s", _ONLY_WARM_UP)
    if not any(second.samples for records in timed.values() for second in records):
        return missing("samples_per_second", "1/s", _NO_ROWS)
    slowest, seconds, _ = job_time(timed)
    value = sum(second.samples for records in timed.values() for second in records) / seconds
    rows = added([second.samples / second.step for second in records] for records in timed.values())
    lengths = [max(row) for row in itertools.zip_longest(*_steps(timed), fillvalue=0.0)]
    # The rows' mean is the figure but for what the n-th seconds of the ranks differ in length.
    mean = sum(rate * length for rate, length in zip(rows, lengths, strict=True)) / sum(lengths)
    spread = spread_of([value / mean * rate for rate in rows])
    # The seconds of the rank that decides, as for the step time: with batches of one size the same relative noise.
    mine = timed[slowest]
    known = confidence_of_ratio([float(second.samples) for second in mine], [second.step for second in mine])
    own = sum(second.samples for second in mine) / seconds
    return Figure("samples_per_second", "1/s", value, window, spread, confidence=as_noisy(value, own, known))


def _wait(timed: Timed, pool: list[LoaderSecond], window: Window | None) -> Figure:
    if not pool:
        return missing("data_wait", "%", _ONLY_WARM_UP)
    value = 100 * sum(second.wait for second in pool) / sum(second.step for second in pool)
    spread = spread_of([100 * s.wait / s.step for s in pool])
    known = share_range(([second.wait for second in records] for records in timed.values()), _steps(timed), value)
    return Figure("data_wait", "%", value, window, spread, confidence=known)


def _steps(timed: Timed) -> list[list[float]]:
    return [[second.step for second in records] for records in timed.values()]


def _h2d(pool: list[LoaderSecond], window: Window | None) -> Figure:
    measured = [(second, second.h2d) for second in pool if second.h2d is not None]
    if not measured:
        return missing("h2d", "%", _ONLY_WARM_UP if not pool else "headrace did not copy batches to a CUDA device here")
    return _part("h2d", measured, len(pool), window)


def _compute(pool: list[LoaderSecond], window: Window | None) -> Figure:
    if not pool:
        return missing("compute", "%", _ONLY_WARM_UP)
    measured = [(second, second.compute) for second in pool if second.compute is not None]
    if measured:
        return _part("compute", measured, len(pool), window)
    left = [(second, max(0.0, second.step - second.wait - (second.h2d or 0.0))) for second in pool]
    note = "no CUDA events: the part of the step that is neither wait nor copy"
    return msgspec.structs.replace(_part("compute", left, len(pool), window), note=note)


def _part(name: str, parts: list[tuple[LoaderSecond, float]], records: int, window: Window | None) -> Figure:
    value = 100 * sum(part for _, part in parts) / sum(second.step for second, _ in parts)
    note = "" if len(parts) == records else f"measured in {len(parts)} of {records} records"
    return Figure(name, "%", value, window, spread_of([100 * part / second.step for second, part in parts]), note)


def _queue(pool: list[LoaderSecond], window: Window | None) -> Figure:
    measured = [(second, second.queue) for second in pool if second.queue is not None]
    if not measured:
        return missing(
            "queue", "1", _ONLY_WARM_UP if not pool else "it is not headrace's loader, and only that counts them"
        )
    value = sum(queue * second.steps for second, queue in measured) / sum(second.steps for second, _ in measured)
    return Figure("queue", "1", value, window, spread_of([queue for _, queue in measured]))

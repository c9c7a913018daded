"""Local, hybrid, remote, or do not offload: the decision, as a pure function of measured figures.

With the step floor F (the step when no batch has to be waited for), R rows a batch, and a sample that costs c CPU
seconds and w wall seconds of a worker, a loader that never stalls needs

    cores   = HEADROOM * R / F * c
    workers = HEADROOM * R / F * w

The machine can give the cores that the training process leaves, and PROCESSES_PER_CORE workers a core (workers that
wait for a disk or a network need no core of their own). What fits is local. What does not fit goes to other hosts, if a
batch comes from there sooner than the best that this machine can do, and if taking it in costs the trainer less CPU
than making it.
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec

STALLED = 0.05
"""A loop that waits for less than this part of a step does not stall."""

WORTH = 1.10
"""A gain below this is within the noise of a short trial."""

HEADROOM = 1.10
PROCESSES_PER_CORE = 8
BUSY = 0.9
HYBRID = 0.2
"""From this share of the work on, local workers are worth keeping beside remote ones."""

_FORGOTTEN = 0.5


class Advice(str, Enum):
    """Where the batches should be made."""

    DO_NOT_OFFLOAD = "do not offload"
    LOCAL = "local"
    HYBRID = "hybrid"
    REMOTE = "remote"
    UNKNOWN = "unknown"


class Case(msgspec.Struct, frozen=True):
    """One rank's figures.

    Attributes:
        rows: samples a batch.
        step, wait, floor: seconds a step: as it is, blocked in `next()`, and with replayed batches.
        sample_wall, sample_cpu: wall and CPU seconds of a worker for a sample, None if unknown.
        cores: cores of this machine for this rank.
        trainer_cores: of these, what the training process itself uses.
        workers: `num_workers` as it is.
        map_style: False for an IterableDataset.
        remote: its workers are on other hosts already.
        first_wait: part of the wait that falls on the first step of a pass.
    """

    rows: float
    step: float
    wait: float
    floor: float
    sample_wall: float | None
    sample_cpu: float | None
    cores: float
    trainer_cores: float = 0.0
    workers: int = 0
    map_style: bool = True
    remote: bool = False
    first_wait: float = 0.0

    @property
    def gain(self) -> float:
        """Step time over floor: the best that any loader can bring."""
        return self.step / self.floor

    @property
    def free_cores(self) -> float:
        """Cores that the training process leaves to workers."""
        return max(0.0, self.cores - self.trainer_cores)

    @property
    def most_workers(self) -> int:
        """Worker processes that this machine should have at most."""
        return max(1, int(self.cores * PROCESSES_PER_CORE))


class Transfer(msgspec.Struct, frozen=True):
    """What one batch costs over TCP, measured on loopback.

    Attributes:
        batches: how many were measured.
        bytes: payload.
        seconds: wall time per batch.
        trainer_cpu, worker_cpu: CPU seconds per batch on either side.
    """

    batches: int
    bytes: int
    seconds: float
    trainer_cpu: float
    worker_cpu: float


class OffloadDecision(msgspec.Struct, frozen=True):
    """The decision for one rank.

    Attributes:
        advice: where.
        reason: why, in one sentence.
        workers: `num_workers` on this machine, None when it need not change.
        remote_cores, remote_workers: cores and executors on other hosts.
        step: predicted step, seconds; None without a prediction.
        notes: what else to do or to know.
    """

    advice: Advice
    reason: str
    workers: int | None = None
    remote_cores: int = 0
    remote_workers: int = 0
    step: float | None = None
    notes: tuple[str, ...] = ()


def wall_of(case: Case) -> float | None:
    """Returns a worker's wall seconds for a sample; from the rate of a stalled loop when they were not measured."""
    if case.sample_wall is not None:
        return max(case.sample_wall, case.sample_cpu or 0.0)
    if case.sample_cpu is None:
        return None
    stalled = case.wait / case.step >= STALLED
    return max(case.sample_cpu, case.workers * case.step / case.rows if stalled else 0.0)


def local_capacity(case: Case) -> float | None:
    """Returns the samples a second that workers on this machine can make at most; None when the cost is unknown.

    min(free cores / CPU seconds a sample, most workers / wall seconds a sample)
    """
    wall = wall_of(case)
    if not case.map_style or case.sample_cpu is None or wall is None:
        return None
    by_cpu = case.free_cores / case.sample_cpu if case.sample_cpu > 0 else math.inf
    by_workers = case.most_workers / wall if wall > 0 else math.inf
    found = min(by_cpu, by_workers)
    return found if math.isfinite(found) else None


def decide(case: Case, transfer: Transfer | None) -> OffloadDecision:
    """Decides for one rank.

    Args:
        case: its figures.
        transfer: what a batch costs over TCP; None if it was not measured.
    """
    idle = _not_worth_it(case)
    if idle is not None:
        return idle
    if not case.map_style:
        return OffloadDecision(
            Advice.UNKNOWN,
            "the loop stalls, but the dataset is an IterableDataset, which divides the work among its workers by "
            "itself: what more workers could make is unknown, and headrace.feed serves map-style datasets",
            notes=(
                "try more num_workers, if the dataset divides itself by get_worker_info(); or give it __getitem__ and "
                "__len__, and ask again",
            ),
        )
    wall = wall_of(case)
    if case.sample_cpu is None or wall is None:
        return OffloadDecision(
            Advice.UNKNOWN,
            "the loop stalls, but what a sample costs could not be measured",
            notes=("try it with num_workers=0, or with the start method fork",),
        )
    return _place(case, wall, case.sample_cpu, transfer)


def _not_worth_it(case: Case) -> OffloadDecision | None:
    stall = case.wait / case.step
    working = case.rows / case.step * (case.sample_cpu or 0.0) + case.trainer_cores if case.workers else 0.0
    crowded = working >= BUSY * case.cores
    if case.gain >= WORTH and (stall >= STALLED or crowded):
        return None
    if stall < STALLED:
        reason = f"the loop does not stall: it waits for {100 * stall:.1f} % of a step; the time goes into the step"
    else:
        reason = (
            f"the loop waits for {100 * stall:.0f} % of a step, but with batches at hand a step takes as long: the "
            "device works meanwhile"
        )
    notes: tuple[str, ...] = ()
    if case.gain >= WORTH:
        notes = ("the replay was faster all the same, with idle cores: the machine may have been busy with other work",)
    return OffloadDecision(Advice.DO_NOT_OFFLOAD, reason, notes=notes)


def _place(case: Case, wall: float, cpu: float, transfer: Transfer | None) -> OffloadDecision:
    demand = HEADROOM * case.rows / case.floor
    cores, workers = demand * cpu, max(1, math.ceil(demand * max(wall, cpu)))
    notes = _notes(case, workers)
    if case.remote:
        reason = "the loop stalls: the workers on the other hosts are too few, or too slow"
        return OffloadDecision(Advice.REMOTE, reason, None, math.ceil(cores), workers, case.floor, notes)
    if cores <= case.free_cores and workers <= case.most_workers:
        return OffloadDecision(
            Advice.LOCAL,
            f"{workers} workers, with {cores:.1f} of the {case.free_cores:.1f} cores that training leaves, can make "
            "every batch in time",
            max(workers, case.workers),
            step=case.floor,
            notes=notes,
        )
    share = min(case.free_cores / cores if cores > 0 else 1.0, case.most_workers / workers)
    here = min(case.step, case.floor / share if share > 0 else math.inf)
    most = max(1, min(case.most_workers, math.floor(workers * share)))
    carried = 1.0 if transfer is None else min(1.0, case.floor / transfer.seconds)  # of the demand, over TCP
    hybrid = share >= HYBRID
    away = min(1.0 - share, carried) if hybrid else carried
    step = case.floor / min(1.0, share + away) if hybrid else case.floor / away
    refusal = _refusal(case, cpu, here, step, transfer, cpu_bound=cores > case.free_cores)
    if refusal:
        if here * WORTH < case.step:
            return OffloadDecision(Advice.LOCAL, f"{refusal}; more workers here help", most, step=here, notes=notes)
        return OffloadDecision(Advice.DO_NOT_OFFLOAD, refusal, notes=notes)
    if transfer is None:
        notes += ("the transfer was not measured: the network may be the next limit",)
    elif carried < 1.0:
        notes += (f"{1000 * transfer.seconds:.2f} ms a batch over TCP is the limit; the floor cannot be reached",)
    lacking = (
        f"every batch in time takes {cores:.1f} cores and {workers} workers; training leaves {case.free_cores:.1f} "
        f"cores, and {case.most_workers} workers are sensible here"
    )
    return OffloadDecision(
        Advice.HYBRID if hybrid else Advice.REMOTE,
        lacking,
        most if hybrid else None,
        max(1, math.ceil(cores * away)),
        max(1, math.ceil(workers * away)),
        step,
        notes,
    )


def _refusal(case: Case, cpu: float, here: float, step: float, transfer: Transfer | None, *, cpu_bound: bool) -> str:
    """Returns why remote workers would not help, empty when they would."""
    if transfer is None:
        return ""
    making = case.rows * cpu
    if cpu_bound and transfer.trainer_cpu >= making:
        return (
            f"taking in a batch costs the trainer {1000 * transfer.trainer_cpu:.1f} ms of CPU, making it "
            f"{1000 * making:.1f} ms: remote workers would save nothing"
        )
    if step * WORTH >= here:
        return (
            f"a batch of {transfer.bytes / 1e6:.2f} MB takes {1000 * transfer.seconds:.1f} ms over TCP: remote workers "
            "would not be faster than this machine"
        )
    return ""


def _notes(case: Case, workers: int) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if case.first_wait >= _FORGOTTEN and case.workers:
        notes += (
            f"{100 * case.first_wait:.0f} % of the wait falls on the first batch of an epoch: persistent_workers=True "
            "keeps the workers",
        )
    if case.sample_wall is not None and case.sample_cpu is not None and case.sample_wall > 2 * case.sample_cpu:
        notes += (
            f"a sample takes {1000 * case.sample_wall:.1f} ms of a worker, {1000 * case.sample_cpu:.1f} ms of it on a "
            "CPU: workers wait for a disk, a network, or the cores that others use",
        )
    if 0 < workers <= case.workers:
        notes += (
            f"the {case.workers} workers are enough on average: the wait comes from bursts (prefetch_factor) or from "
            "handing the batches over (pickle, shared memory), which headrace.feed.DataLoader does not need",
        )
    return notes

"""Local, hybrid, remote, or do not offload: the decision, as a pure function of measured figures.

What a loader can make is asked of `headrace.insight.performance_model`. A step computes for the step floor (the step
when no batch has to be waited for); a worker needs a core for the CPU seconds of a sample, and waits for the rest of
its wall seconds. A sample is taken to cost HEADROOM times what was measured.

This machine has the cores that the training process leaves, and at most PROCESSES_PER_CORE workers a core (workers that
wait for a disk or a network need no core of their own). If they make every batch within the floor, the answer is local.
What they cannot make goes to other hosts, if a step is then shorter than the best that this machine can do, and if
taking in a batch costs the trainer less CPU than making it.
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from headrace.insight.evidence import CPU_BUSY, NOT_BOUND_SHARE, WORTH
from headrace.insight.performance_model import Pool, Workload, exactly, fewest_executors, predict, rate

HEADROOM = 1.10
PROCESSES_PER_CORE = 8
HYBRID = 0.2
"""From this share of the work on, local workers are worth keeping beside remote ones."""

NEARLY = 0.95
"""More workers than make this part of what a machine can make are not worth their processes."""

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
        cut_short: the script ended before the trial was over.
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
    cut_short: bool = False

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
    stalled = case.wait / case.step >= NOT_BOUND_SHARE
    return max(case.sample_cpu, case.workers * case.step / case.rows if stalled else 0.0)


def local_capacity(case: Case) -> float | None:
    """Returns the samples a second that workers on this machine can make at most; None when the cost is unknown."""
    wall = wall_of(case)
    if not case.map_style or case.sample_cpu is None or wall is None:
        return None
    found = rate(case.most_workers, case.free_cores, case.sample_cpu, wall - case.sample_cpu)
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
            "the loop stalls, but the dataset has no rows by number (an IterableDataset, or what headrace reads in "
            "lanes) and divides the work among its workers by itself: what more workers could make is unknown",
            notes=(
                "try more num_workers, if the dataset divides itself by get_worker_info(): headrace.feed reads it in "
                "lanes (num_shards=), here and elsewhere, each by one worker; or give it __getitem__ and __len__, and "
                "ask again",
            ),
        )
    wall = wall_of(case)
    if case.sample_cpu is None or wall is None:
        reason = "the loop stalls, but what a sample costs could not be measured"
        if case.cut_short:  # the report says how long a script must be
            return OffloadDecision(Advice.UNKNOWN, f"{reason}: the script ended before the trial was over")
        return OffloadDecision(
            Advice.UNKNOWN, reason, notes=("try it with num_workers=0, or with the start method fork",)
        )
    return _place(case, wall, case.sample_cpu, transfer)


def _not_worth_it(case: Case) -> OffloadDecision | None:
    stall = case.wait / case.step
    working = case.rows / case.step * (case.sample_cpu or 0.0) + case.trainer_cores if case.workers else 0.0
    crowded = working >= CPU_BUSY / 100 * case.cores
    if case.gain >= WORTH and (stall >= NOT_BOUND_SHARE or crowded):
        return None
    if stall < NOT_BOUND_SHARE:
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


class _Model:
    """One case in the terms of the performance model.

    Args:
        case: its figures.
        wall, cpu: seconds of a worker for a sample.
        transfer: what a batch costs over TCP; None for no limit.
    """

    def __init__(self, case: Case, wall: float, cpu: float, transfer: Transfer | None) -> None:
        self.case = case
        self.cpu, self.pause = HEADROOM * cpu, HEADROOM * (wall - cpu)
        size = 1 if transfer is None else max(1, transfer.bytes)
        self.bandwidth = None if transfer is None else size / transfer.seconds
        self.workload = Workload(
            case.rows, exactly(case.floor), exactly(case.trainer_cores * case.floor), size / case.rows
        )

    def free(self, step: float) -> float:
        """Returns the cores that training leaves on this machine when a step lasts so long."""
        return max(0.0, self.case.cores - self.case.trainer_cores * self.case.floor / step)

    def here(self, workers: int, step: float) -> float:
        """Returns the samples a second that so many workers on this machine make in a step of `step` seconds."""
        return rate(workers, self.free(step), self.cpu, self.pause)

    def fewest_here(self, wanted: float, step: float) -> int | None:
        """Returns the workers on this machine that make `wanted` samples a second; None if it cannot."""
        return fewest_executors(wanted, self.free(step), self.cpu, self.pause, self.case.most_workers)

    def sensible_here(self, step: float) -> int:
        """Returns the workers with which this machine makes nearly what it can in a step of `step` seconds."""
        return self.fewest_here(NEARLY * self.here(self.case.most_workers, step), step) or 1

    def away(self, wanted: float) -> tuple[int, int]:
        """Returns the cores of other hosts that make `wanted` samples a second, and their executors."""
        cores = max(1, math.ceil(wanted * self.cpu))
        workers = fewest_executors(wanted, cores, self.cpu, self.pause)
        assert workers is not None  # there are cores enough
        return cores, workers

    def step(self, workers: int, cores: int = 0, executors: int = 0) -> float:
        """Returns the predicted step with workers on this machine and executors on the cores of other hosts."""
        cpu, pause = exactly(self.cpu), exactly(self.pause)
        pools = [Pool(1, self.case.cores, workers, cpu, pause, trains=True)]
        if cores:
            pools.append(Pool(1, cores, executors, cpu, pause, self.bandwidth))
        return predict(self.workload, pools).step.value


def _place(case: Case, wall: float, cpu: float, transfer: Transfer | None) -> OffloadDecision:
    model = _Model(case, wall, cpu, transfer)
    floor, demand = case.floor, case.rows / case.floor
    cores, (whole_cores, workers) = demand * model.cpu, model.away(demand)
    if case.remote:
        reason = "the loop stalls: the workers on the other hosts are too few, or too slow"
        return OffloadDecision(Advice.REMOTE, reason, None, whole_cores, workers, floor, _notes(case, workers))
    enough = model.fewest_here(demand, floor)
    if enough is not None:
        return OffloadDecision(
            Advice.LOCAL,
            f"{enough} workers, with {cores:.1f} of the {case.free_cores:.1f} cores that training leaves, can make "
            "every batch in time",
            max(enough, case.workers),
            step=floor,
            notes=_notes(case, enough),
        )
    notes = _notes(case, 0)
    most = model.sensible_here(min(case.step, model.step(case.most_workers)))
    here = min(case.step, model.step(most))
    hybrid = model.here(case.most_workers, floor) >= HYBRID * demand
    beside = model.sensible_here(floor) if hybrid else 0
    carried = math.inf if transfer is None else case.rows / transfer.seconds  # samples a second
    remote_cores, remote_workers = model.away(min(demand - model.here(beside, floor), carried))
    step = model.step(beside, remote_cores, remote_workers)
    refusal = _refusal(case, cpu, here, step, transfer, cpu_bound=cores > case.free_cores)
    if refusal:
        if here * WORTH < case.step:
            return OffloadDecision(Advice.LOCAL, f"{refusal}; more workers here help", most, step=here, notes=notes)
        return OffloadDecision(Advice.DO_NOT_OFFLOAD, refusal, notes=notes)
    if transfer is None:
        notes += ("the transfer was not measured: the network may be the next limit",)
    elif transfer.seconds > floor:
        notes += (f"{1000 * transfer.seconds:.2f} ms a batch over TCP is the limit; the floor cannot be reached",)
    lacking = (
        f"every batch in time takes {cores:.1f} cores and {workers} workers; training leaves {case.free_cores:.1f} "
        f"cores, and {case.most_workers} workers are sensible here"
    )
    return OffloadDecision(
        Advice.HYBRID if hybrid else Advice.REMOTE,
        lacking,
        beside if hybrid else None,
        remote_cores,
        remote_workers,
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

"""What a run tells the model: the cost of a step and of a sample, from its metrics. Pure.

Only what was measured in the training window is used: warm-up is left out, and so is what came before all data workers
were ready. What a run cannot tell is assumed, and every assumption is a sentence in `Measured.assumptions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from headrace.insight.advise.link_bandwidth import with_links
from headrace.insight.advise.measured_inputs import GroupFacts, Measured, not_enough
from headrace.insight.figures.data_workers import workers_report
from headrace.insight.figures.figure import WARM_UP_RECORDS, Window, percentile
from headrace.insight.figures.host_usage import cpu_rate
from headrace.insight.figures.loaders import by_loader, job_time, main_loader, window_of
from headrace.insight.figures.planned_job import PlannedGroup
from headrace.insight.performance_model import Range, Workload, around, exactly, pause_of
from headrace.insight.verdicts.evidence import made_beside, short_of_cores
from headrace.insight.verdicts.thresholds import CROWDED, LEAST_RECORDS
from headrace.runs import HostSecond, LoaderSecond, ServiceSecond, Stream, WorkerSecond

SATURATED = 0.9
"""From this share on all cores of a host count as busy: what waits there may be waiting for a core."""

NICE_SHARE = 1024 / (1024 + 110)
"""What a rank keeps of a core on which a data worker of niceness 10 computes too: the kernel's weights of 0 and 10."""

Second = TypeVar("Second", HostSecond, WorkerSecond)


def measure(
    plan: Sequence[PlannedGroup],
    loaders: Mapping[Stream, Sequence[LoaderSecond]],
    workers: Mapping[Stream, Sequence[WorkerSecond]],
    hosts: Mapping[Stream, Sequence[HostSecond]],
    loader: str | None = None,
    *,
    servers: Mapping[Stream, Sequence[ServiceSecond]] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Measured:
    """Reads what the model needs from a run's metrics.

    Args:
        plan: the groups of the run.
        loaders: metrics of the loaders, by rank.
        workers: metrics of the data workers, by feed server or rank.
        hosts: metrics of the hosts.
        loader: name of the loader to read; by default the training's main one.
        servers: metrics of the servers of tf.data.service.
        limits: bytes a second to which the job limits the hosts of a group.

    Raises:
        UsageError: something that cannot be assumed was not measured.
    """
    main = main_loader(loaders) if loader is None else loader
    ranks = by_loader(loaders).get(main, {}) if main is not None else {}
    window = window_of(ranks)
    if main is None or window is None:
        raise not_enough(
            "no loader wrote metrics for longer than a second after all data workers were ready; that second is warm-up"
        )
    training = sorted({stream.group for stream in ranks})
    if len(training) > 1:
        raise not_enough(
            f"ranks train in several groups ({', '.join(training)}): only one kind of trainer can be advised"
        )
    planned = {group.name: group for group in plan}
    own = planned.get(training[0])
    if own is None:
        raise not_enough(f"plan.json does not name the group {training[0]!r}, whose ranks train")
    steps = _Steps(ranks)
    told = {s: _inside(found, window) for s, found in workers.items()}
    told = {s: [w for w in found if w.loader in ("", main)] for s, found in told.items()}
    spent = {s: _spent(found, window) for s, found in hosts.items()}
    trainer_hosts = {stream.host for stream in ranks}
    lone = [s for s in spent if s.group == own.name and s.host in trainer_hosts and spent[s] is not None]
    if not lone:
        raise not_enough(f"the hosts of {own.name} wrote no CPU metrics in the training window")
    per_host = len(ranks) / len(trainer_hosts)
    assumptions: list[str] = []
    costs = _Costs(told, spent, trainer_hosts, steps, per_host, window)
    if costs.told:
        makers = [group for group in plan if group.name == own.name or group.feed_executors or costs.makes(group)]
        compute, trainer = costs.compute(steps.compute, assumptions), costs.trainer_cpu
        found = {group.name: (costs.executors_of(group), *costs.of(group.name)) for group in makers}
        if all(cpu is None for _, cpu, _ in found.values()):
            raise not_enough("its data workers do not tell how long they took, or plan.json does not name their group")
    else:
        makers = list(plan)
        beside = [group for group in plan if group.name != own.name]
        if any(group.feed_executors for group in beside):
            raise not_enough("its data workers wrote no metrics in the training window")
        compute = steps.compute
        cpu, trainer = _foreign(steps, costs, per_host, beside, assumptions)
        # How many workers there are is not reported: one for each core is assumed.
        found = {group.name: (_cores(group, hosts), cpu, exactly(0.0)) for group in makers}
    facts = [_facts(group, hosts, spent, group.name == own.name, *found[group.name]) for group in makers]
    groups, unsure = with_links(facts, told, limits or {}, assumptions)
    return Measured(
        workload=Workload(steps.rows, compute, trainer, steps.bytes / steps.kept_samples or None),
        step=steps.step,
        wait=steps.wait,
        steps=steps.total,
        samples=steps.samples,
        window=window,
        groups=groups,
        others=tuple(group for group in plan if group not in makers),
        ranks_per_host=per_host,
        workers_told=costs.told,
        blurred=made_beside(main, ranks, workers, servers or {}, window)
        and not steps.device
        and costs.crowded(len(trainer_hosts), gpus=any(o.gpus for s in lone for o in hosts[s])),
        link_unsure=unsure,
        assumptions=tuple(assumptions),
    )


def _foreign(
    steps: _Steps, costs: _Costs, ranks: float, beside: Sequence[PlannedGroup], assumptions: list[str]
) -> tuple[Range, Range]:
    """Returns the CPU seconds of a sample, and the CPU of the ranks a step and host, when no data worker told it.

    Args:
        steps: the steps.
        costs: what hosts used.
        ranks: on each host that trains.
        beside: the groups that do not train; all their CPU time is taken to go into samples.
        assumptions: gets sentences.
    """
    alone, total = ranks * steps.compute.value, costs.total_cpu
    if total <= 0:
        raise not_enough("its hosts used no CPU time that could be measured")
    if beside:
        names = ", ".join(group.name for group in beside)
        assumptions.append(f"all CPU time of {names} goes into samples")
    if costs.host_cpu > alone:
        assumptions.append(
            "the loader does not tell its workers from the ranks: each rank is taken to keep one core busy while it "
            "computes, and the rest of the host's CPU time to go into samples; the range counts all of it as samples"
        )
        return around((total - costs.trainers * alone) / steps.rows, total / steps.rows), Range(alone, alone, 0.0)
    assumptions.append(
        "the loader does not tell its workers from the ranks: all CPU time of the host is taken to go into samples, "
        "because it is less than one core for each computing rank"
    )
    return exactly(total / steps.rows), exactly(0.0)


class _Steps:
    """Sums over the steps of all ranks, warm-up left out. Seconds a step."""

    def __init__(self, ranks: Mapping[Stream, Sequence[LoaderSecond]]) -> None:
        kept = {s: [one for one in found[WARM_UP_RECORDS:] if one.steps and one.step > 0] for s, found in ranks.items()}
        if not all(kept.values()):
            raise not_enough("a rank trained for no longer than the first second, which is left out as warm-up")
        pool = [one for found in kept.values() for one in found]
        if len(pool) < LEAST_RECORDS:  # as the verdict, which is then unknown
            raise not_enough(
                f"{len(pool)} records of its loader (about one a second) after the warm-up are no measurement: "
                f"{LEAST_RECORDS} are needed"
            )
        _, seconds, count = job_time(kept)
        self.kept_samples = sum(one.samples for one in pool)
        if not self.kept_samples:
            raise not_enough("its loader does not tell how many samples a batch has")
        self.bytes = sum(one.bytes for one in pool)
        self.rows = sum(sum(o.samples for o in found) / sum(o.steps for o in found) for found in kept.values())
        self.step = _spread(seconds / count, [one.step / one.steps for one in pool])
        self.wait = sum(one.wait for one in pool) / sum(one.step for one in pool)
        # A rank that waits in a collective for another one's batch counts that as compute: the least is the true one.
        least = min(kept.values(), key=_working)
        self.compute = _spread(_working(least), [(one.step - one.wait) / one.steps for one in least])
        whole = [one for found in ranks.values() for one in found]
        self.total = max(sum(one.steps for one in found) for found in ranks.values())
        self.samples = sum(one.samples for one in whole)
        self.device = all(one.compute is not None for one in pool)


def _working(found: Sequence[LoaderSecond]) -> float:
    return sum(one.step - one.wait for one in found) / sum(one.steps for one in found)


def _spread(value: float, values: Sequence[float]) -> Range:
    return around(value, percentile(values, 10), percentile(values, 90)) if values else exactly(value)


def _inside(found: Sequence[Second], window: Window) -> list[Second]:
    return [one for one in found if window.start < one.t <= window.end]


class _Spent(msgspec.Struct, frozen=True):
    """CPU seconds a second of a host in the window, and its cores."""

    rate: float
    cores: int


def _spent(found: Sequence[HostSecond], window: Window) -> _Spent | None:
    within = [one for one in found if window.start <= one.t <= window.end]
    if len(within) < 2 or within[-1].t <= within[0].t:
        return None
    return _Spent(cpu_rate(within, None), within[-1].cores)


class _Costs:
    """What samples and steps cost when the data workers have told it."""

    def __init__(
        self,
        told: Mapping[Stream, Sequence[WorkerSecond]],
        spent: Mapping[Stream, _Spent | None],
        trainer_hosts: set[str],
        steps: _Steps,
        ranks_per_host: float,
        window: Window,
    ) -> None:
        self._window = window
        self._told = told
        self._ranks = ranks_per_host
        self._by_host = {stream.host: one for stream, one in spent.items() if one is not None}
        self._trainer_hosts = {host for host in trainer_hosts if host in self._by_host}
        left = [self._others(host) for host in sorted(self._trainer_hosts)]
        rate = sum(left) / len(left)
        self.trainer_cpu = _spread(rate * steps.step.value, [one * steps.step.value for one in left])
        totals = [self._by_host[host].rate for host in sorted(self._trainer_hosts)]
        self.host_cpu = sum(totals) / len(totals) * steps.step.value
        self.total_cpu = sum(one.rate for one in self._by_host.values()) * steps.step.value
        self.trainers = len(totals)
        self.told = any(one.samples for found in told.values() for one in found)

    def crowded(self, hosts: int, *, gpus: bool) -> bool:
        """Returns whether one of so many hosts that train had no cores to spare, or was not measured."""
        found = [self._by_host[host] for host in self._trainer_hosts]
        return len(found) < hosts or any(
            100 * one.rate >= CROWDED * one.cores or short_of_cores(one.rate, one.cores, round(self._ranks), gpus=gpus)
            for one in found
        )

    def executors_of(self, group: PlannedGroup) -> int:
        """Returns the data workers a host: as they told it, else as planned."""
        return max([group.feed_executors, *(self._executors(host) for host in group.hosts)])

    def makes(self, group: PlannedGroup) -> bool:
        """Returns whether data workers of the group have made samples."""
        return any(one.samples for stream, found in self._told.items() if stream.group == group.name for one in found)

    def _executor_rate(self, host: str) -> float:
        """Returns the CPU seconds a second of all data workers of a host."""
        mine = [found for stream, found in self._told.items() if stream.host == host]
        return sum(sum(w.cpu for w in found) / total for found in mine if (total := sum(w.seconds for w in found)))

    def _others(self, host: str) -> float:
        return max(0.0, self._by_host[host].rate - self._executor_rate(host))

    def _executors(self, host: str) -> int:
        return sum(found[-1].executors for s, found in self._told.items() if s.host == host and found)

    @property
    def _saturated(self) -> bool:
        return any(one.rate >= SATURATED * one.cores for h, one in self._by_host.items() if h in self._trainer_hosts)

    def compute(self, measured: Range, assumptions: list[str]) -> Range:
        """Returns the compute time of a step without data workers on the same cores."""
        crowded = any(
            self._executors(host) + self._ranks > self._by_host[host].cores for host in sorted(self._trainer_hosts)
        )
        if not (self._saturated and crowded):
            return measured
        least = NICE_SHARE * measured.value
        alone = min(measured.value, max(least, self.trainer_cpu.value / self._ranks))
        assumptions.append(
            "data workers competed for the cores of the ranks: compute without them is the CPU time of a rank a step, "
            f"at least {100 * NICE_SHARE:.0f} % of what was measured (the workers' niceness is 10)"
        )
        return Range(min(NICE_SHARE * measured.low, alone), alone, measured.high)

    def of(self, group: str) -> tuple[Range | None, Range | None]:
        """Returns CPU seconds and pause of a sample in a group's workers; None when they made nothing."""
        mine = {stream: found for stream, found in self._told.items() if stream.group == group}
        made = [one for found in mine.values() for one in found if one.samples]
        report = workers_report(group, "", mine, self._window)
        if not made or report.supply.value is None or report.cpu.value is None:
            return None, None
        value, produce = report.cpu.value / 1000, 1 / report.supply.value
        cpu = _spread(value, [one.cpu / one.samples for one in made])
        spread = _spread(produce, [one.produce / one.samples for one in made])
        low, middle, high = (
            self._pause(sorted({stream.host for stream in mine}), busy, value)
            for busy in (spread.low, produce, spread.high)
        )
        return cpu, Range(min(low, middle), middle, max(high, middle))

    def _pause(self, hosts: Sequence[str], busy: float, cpu: float) -> float:
        """Returns a worker's busy time for a sample less computing and queueing for a core, mean over the hosts."""
        found = []
        for host in hosts:
            known = self._by_host.get(host)
            if known is None:
                found.append(max(0.0, busy - cpu))
                continue
            others = self._others(host) if host in self._trainer_hosts else 0.0
            found.append(pause_of(busy, self._executors(host), known.cores - others, cpu))
        return sum(found) / len(found)


def _cores(group: PlannedGroup, hosts: Mapping[Stream, Sequence[HostSecond]]) -> int:
    """Returns the cores that each host of a group may use."""
    cores = [found[-1].cores for stream, found in hosts.items() if stream.group == group.name and found]
    if not cores:
        raise not_enough(f"the hosts of {group.name} wrote no metrics: how many cores they have is not known")
    return min(cores)


def _facts(
    group: PlannedGroup,
    hosts: Mapping[Stream, Sequence[HostSecond]],
    spent: Mapping[Stream, _Spent | None],
    trains: bool,
    executors: int,
    cpu: Range | None,
    pause: Range | None,
) -> GroupFacts:
    busy = [one for stream, one in spent.items() if stream.group == group.name and one is not None]
    return GroupFacts(
        name=group.name,
        instance_type=group.instance_type,
        hosts=len(group.hosts),
        trains=trains,
        executors=executors,
        cores=_cores(group, hosts),
        busy=sum(one.rate for one in busy) / sum(one.cores for one in busy) if busy else None,
        cpu=cpu,
        pause=pause,
    )

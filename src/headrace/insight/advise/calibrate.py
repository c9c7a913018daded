"""What a run tells the model: the cost of a step and of a sample, from its metrics. Pure.

Only what was measured in the training window is used: warm-up is left out, and so is what came before all data workers
were ready. What a run cannot tell is assumed, and every assumption is a sentence in `Measured.assumptions`.

A network carries what a run measured, else
what its job limits it to. A link that is busy most of the time shows what it carries: bytes sent / seconds in which it
was sending. A link that is seldom busy shows nothing, and counts with its limit, else with the published bandwidth of
its type.

Two links lie between a data host and a host that trains, and what is measured is the narrower of them. Where the hosts
that train take in nearly all that theirs is known to carry, it is theirs: more data hosts bring no more bytes. Else
it is taken to be that of the data hosts, of which every further host has one more; unless that agrees with what is
known of it, a sentence says that it is an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from headrace.catalog.instance_types import speed
from headrace.errors import UsageError
from headrace.insight.evidence import CPU_BUSY, CROWDED, LEAST_RECORDS, LINK_BUSY, made_beside, short_of_cores
from headrace.insight.figures.columns import (
    BANDWIDTH,
    BYTES_PER_SAMPLE,
    DATA_WAIT,
    LINK,
    STEP_TIME,
    SUPPLY,
    WORKER_CPU,
    Columns,
    Key,
    Quantity,
    Table,
    joined,
    total,
)
from headrace.insight.figures.figure import Window, percentile
from headrace.insight.figures.host_usage import cpu_rate
from headrace.insight.figures.loaders import Ranks, Training, job_time, most_steps, timed, training_of
from headrace.insight.figures.run_files import PlannedGroup
from headrace.insight.performance_model import Range, Workload, around, exactly, pause_of
from headrace.runs import Stream
from headrace.runs.event_text import counted


class GroupFacts(msgspec.Struct, frozen=True):
    """One instance group, as the plan and the metrics have it.

    Attributes:
        name: of the group.
        instance_type: e.g. ``ml.c5.xlarge``.
        hosts: how many.
        trains: its hosts run the ranks.
        executors: data workers a host, as planned; 0 without a feed server.
        cores: CPUs that each host may use.
        busy: share of them that was busy, 0 to 1; None if it was not measured.
        cpu: CPU seconds of a sample in its workers; None when they made nothing.
        pause: seconds that a worker spends on a sample without needing a core.
        bandwidth: bytes a second that the network of each host carries, each way: as measured where it was busy, else
            as the job limits it; None for that of the type, as published.
    """

    name: str
    instance_type: str
    hosts: int
    trains: bool
    executors: int
    cores: int
    busy: float | None = None
    cpu: Range | None = None
    pause: Range | None = None
    bandwidth: float | None = None


class Measured(msgspec.Struct, frozen=True):
    """What the run says, and what has to be assumed.

    Attributes:
        workload: what a step costs.
        step: the measured step, seconds, with the 10th and 90th percentile of its per-second values.
        wait: share of it that ranks waited, 0 to 1.
        steps, samples: from when all data workers were ready, to the end.
        window: where this was measured.
        groups: the hosts that train, and those that make samples.
        ranks_per_host: training processes on each host that trains.
        others: groups that do neither; they stay, and cost money.
        workers_told: whether data workers have told what they did; else `assumptions` say what was assumed of them.
        blurred: the ranks' hosts are busy with computing and with making samples, and the two are not told apart:
            what is no wait need not be computing.
        link_unsure: a link was full, and nothing tells whether it was the data hosts' or the trainer's.
        assumptions: sentences.
    """

    workload: Workload
    step: Range
    wait: float
    steps: int
    samples: int
    window: Window
    groups: tuple[GroupFacts, ...]
    workers_told: bool
    ranks_per_host: float = 1.0
    others: tuple[PlannedGroup, ...] = ()
    blurred: bool = False
    link_unsure: bool = False
    assumptions: tuple[str, ...] = ()

    @property
    def instance_types(self) -> tuple[str, ...]:
        """The types of all hosts, each once."""
        own = [group.instance_type for group in self.groups]
        return tuple(dict.fromkeys([*own, *(group.instance_type for group in self.others)]))

    @property
    def trainer(self) -> GroupFacts:
        """The group whose hosts train."""
        return next(group for group in self.groups if group.trains)

    @property
    def helpers(self) -> tuple[GroupFacts, ...]:
        """The groups that only make samples."""
        return tuple(group for group in self.groups if not group.trains)


def not_enough(what: str) -> UsageError:
    """Returns the error of a run that does not tell what the model needs."""
    return UsageError(
        f"the run cannot be advised: {what}",
        hint="train for at least 5 seconds with headrace.feed.DataLoader, or wrap the loader in headrace.track",
    )


GIGABIT = 1e9 / 8
MEGABIT = 1e6 / 8

FULL = 0.8
"""From this share of its known bandwidth on a link that is busy counts as full: headings, acknowledgements and the
shaping of a link take the rest."""


def published_bandwidth(instance_type: str) -> float | None:
    """Returns the bytes a second of a type's network, as published (baseline); None when unknown."""
    gigabits = speed(instance_type).network_gbps
    return None if gigabits is None else gigabits * GIGABIT


def carried(group: str, told: Mapping[Key, Table]) -> float | None:
    """Returns the bytes a second that a data host's network carried while it sent; None unless it was busy.

    Args:
        group: of the data hosts.
        told: what feed servers and local workers did in the training window.
    """
    servers = [rows for key, rows in told.items() if key.stream.group == group and not key.name]
    busy = LINK.of(servers)
    return BANDWIDTH.of(servers) or None if busy is not None and busy >= LINK_BUSY else None


def with_links(
    groups: Sequence[GroupFacts],
    told: Mapping[Key, Table],
    limits: Mapping[str, float],
    assumptions: list[str],
) -> tuple[tuple[GroupFacts, ...], bool]:
    """Returns the groups with the bandwidth of their hosts, and whether it is not known which end was full.

    Args:
        groups: the hosts that train, and those that make samples.
        told: what feed servers did in the training window.
        limits: bytes a second to which the job limits the hosts of a group.
        assumptions: gets sentences.
    """
    known = {one.name: _known(one, limits) for one in groups}
    found = {one.name: limits.get(one.name) for one in groups}
    senders = [one for one in groups if not one.trains]
    measured = {one.name: value for one in senders if (value := carried(one.name, told)) is not None}
    trainer = next(one for one in groups if one.trains)
    taken, own = sum(measured[one.name] * one.hosts for one in senders if one.name in measured), known[trainer.name]
    full = own is not None and taken >= FULL * own * trainer.hosts
    unsure = False
    if full:
        found[trainer.name] = taken / trainer.hosts
        assumptions.append(
            f"the links of {trainer.name} were full: they took in {_words(taken / trainer.hosts)} a host (measured), "
            "and carry no more, however many hosts send"
        )
    for one in senders:
        value, bound = measured.get(one.name), known[one.name]
        if value is None:
            continue
        if full:  # what they carried is the least that they can
            found[one.name] = max(value, bound or 0.0)
            continue
        found[one.name] = value
        agrees = bound is not None and FULL * bound <= value
        unsure = unsure or not agrees
        end = "" if agrees else ", and it was this end that was full, not the trainer's (which end was not measured)"
        assumptions.append(
            f"a link of {one.name} carries what it carried while it sent, {_words(value)} a host (measured); every "
            f"host has one of its own{end}"
        )
    return tuple(msgspec.structs.replace(one, bandwidth=found[one.name]) for one in groups), unsure


def _known(group: GroupFacts, limits: Mapping[str, float]) -> float | None:
    return limits.get(group.name) or published_bandwidth(group.instance_type)


def _words(bandwidth: float) -> str:
    return f"{bandwidth / MEGABIT:.0f} Mbit/s"


NICE_SHARE = 1024 / (1024 + 110)
"""What a rank keeps of a core on which a data worker of niceness 10 computes too: the kernel's weights of 0 and 10."""


def measure(
    plan: Sequence[PlannedGroup],
    columns: Columns,
    loader: str | None = None,
    *,
    ready: float = 0.0,
    limits: Mapping[str, float] | None = None,
) -> Measured:
    """Reads what the model needs from a run's metrics.

    Args:
        plan: the groups of the run.
        columns: the metrics.
        loader: name of the loader to read; by default the training's main one.
        ready: when all data workers were: what loaders tell of before is left out, seconds since the epoch.
        limits: bytes a second to which the job limits the hosts of a group.

    Raises:
        UsageError: something that cannot be assumed was not measured.
    """
    loaders = _since(ready, columns.loaders())
    chosen = training_of(loaders) if loader is None else Training(loader, loaders.get(loader, {}))
    window = None if chosen is None else chosen.window
    if chosen is None or window is None:
        raise not_enough(
            "no loader wrote metrics for longer than a second after all data workers were ready; that second is warm-up"
        )
    main, ranks = chosen.name, chosen.ranks
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
    workers = {key: rows.after(window) for key, rows in columns.tables("worker").items() if key.name in ("", main)}
    told = {key: rows for key, rows in workers.items() if len(rows)}
    hosts = columns.streams("host")
    spent = {s: _spent(rows, window, _of_host(told, s.host)) for s, rows in hosts.items()}
    trainer_hosts = {stream.host for stream in ranks}
    lone = [s for s in spent if s.group == own.name and s.host in trainer_hosts and spent[s] is not None]
    if not lone:
        raise not_enough(f"the hosts of {own.name} wrote no CPU metrics in the training window")
    per_host = len(ranks) / len(trainer_hosts)
    assumptions: list[str] = []
    costs = _Costs(told, spent, trainer_hosts, steps, per_host)
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
        workload=Workload(steps.rows, compute, trainer, steps.bytes_per_sample),
        step=steps.step,
        wait=steps.wait,
        steps=steps.total,
        samples=steps.samples,
        window=window,
        groups=groups,
        others=tuple(group for group in plan if group not in makers),
        ranks_per_host=per_host,
        workers_told=costs.told,
        blurred=made_beside(main, ranks, columns, window)
        and not steps.device
        and costs.crowded(len(trainer_hosts), gpus=any(key.stream in lone for key in columns.keys("gpu"))),
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


def _since(ready: float, loaders: Mapping[str, Ranks]) -> Mapping[str, Ranks]:
    kept: dict[str, dict[Stream, Table]] = {}
    for name, ranks in loaders.items():
        for stream, rank in ranks.items():
            if len(rows := rank.where(rank["t"] >= ready)):
                kept.setdefault(name, {})[stream] = rows
    return kept


_WORKING = STEP_TIME._replace(over="no_wait", scale=1)
"""Seconds of a step in which a rank does not wait for a batch."""


class _Steps:
    """Sums over the steps of all ranks, warm-up left out. Seconds a step."""

    def __init__(self, ranks: Ranks) -> None:
        kept = timed(ranks)
        rows = list(kept.values())
        if not all(map(len, rows)):
            raise not_enough("a rank trained for no longer than the first second, which is left out as warm-up")
        count = sum(map(len, rows))
        if count < LEAST_RECORDS:  # as the verdict, which is then unknown
            raise not_enough(
                f"{counted(count, 'record')} of its loader (about one a second) after the warm-up: a measurement needs "
                f"{LEAST_RECORDS}"
            )
        _, seconds, steps = job_time(kept)
        size = BYTES_PER_SAMPLE.of(rows)
        if size is None:
            raise not_enough("its loader does not tell how many samples a batch has")
        self.bytes_per_sample = size or None
        self.rows = math.fsum(_BATCH.of([rank]) or 0.0 for rank in rows)
        self.step = _spread(seconds / steps, _each(_SECONDS, rows))
        self.wait = (DATA_WAIT.of(rows) or 0.0) / DATA_WAIT.scale
        # A rank that waits in a collective for another one's batch counts that as compute: the least is the true one.
        least = min(rows, key=_working)
        self.compute = _spread(_working(least), _each(_WORKING, [least]))
        self.total = most_steps(ranks)
        self.samples = int(total(rank["samples"] for rank in ranks.values()))
        self.device = all(len(rank.measured("compute")) == len(rank) for rank in rows)


_SECONDS = STEP_TIME._replace(scale=1)
_BATCH = STEP_TIME._replace(over="samples", scale=1)


def _working(rank: Table) -> float:
    return _WORKING.of([rank]) or 0.0


def _each(quantity: Quantity, tables: Iterable[Table]) -> list[float]:
    return joined(quantity.each(table).over for table in tables)


def _spread(value: float, values: Sequence[float]) -> Range:
    return around(value, percentile(values, 10), percentile(values, 90)) if values else exactly(value)


_EXECUTORS_CPU = LINK._replace(over="cpu", scale=1)


class _Spent(NamedTuple):
    """CPU seconds a second of a host in the window, those of all but its data workers, and its cores."""

    rate: float
    others: float
    cores: int


def _spent(rows: Table, window: Window, workers: Sequence[Table]) -> _Spent | None:
    within = rows.within(window)
    if len(within) < 2 or within["t"][-1] <= within["t"][0]:
        return None
    rate = cpu_rate(within, None)
    others = rate - math.fsum(_EXECUTORS_CPU.of([worker]) or 0.0 for worker in workers)
    return _Spent(rate, max(0.0, others), int(within["cores"][-1]))


def _of_host(told: Mapping[Key, Table], host: str) -> list[Table]:
    return [rows for key, rows in told.items() if key.stream.host == host]


_SAMPLE_CPU, _SAMPLE_TIME = (WORKER_CPU._replace(over=field, scale=1) for field in ("cpu", "produce"))


class _Costs:
    """What samples and steps cost when the data workers have told it."""

    def __init__(
        self,
        told: Mapping[Key, Table],
        spent: Mapping[Stream, _Spent | None],
        trainer_hosts: set[str],
        steps: _Steps,
        ranks_per_host: float,
    ) -> None:
        self._told = told
        self._ranks = ranks_per_host
        self._by_host = {stream.host: one for stream, one in spent.items() if one is not None}
        self._trainers = {host: self._by_host[host] for host in sorted(trainer_hosts) if host in self._by_host}
        left = [host.others for host in self._trainers.values()]
        rate = sum(left) / len(left)
        self.trainer_cpu = _spread(rate * steps.step.value, [one * steps.step.value for one in left])
        totals = [host.rate for host in self._trainers.values()]
        self.host_cpu = sum(totals) / len(totals) * steps.step.value
        self.total_cpu = sum(one.rate for one in self._by_host.values()) * steps.step.value
        self.trainers = len(totals)
        self.told = any(rows["samples"].any() for rows in told.values())

    def crowded(self, hosts: int, *, gpus: bool) -> bool:
        """Returns whether one of so many hosts that train had no cores to spare, or was not measured."""
        return len(self._trainers) < hosts or any(
            100 * one.rate >= CROWDED * one.cores or short_of_cores(one.rate, one.cores, round(self._ranks), gpus=gpus)
            for one in self._trainers.values()
        )

    def executors_of(self, group: PlannedGroup) -> int:
        """Returns the data workers a host: as they told it, else as planned."""
        return max([group.feed_executors, *(self._executors(host) for host in group.hosts)])

    def makes(self, group: PlannedGroup) -> bool:
        """Returns whether data workers of the group have made samples."""
        return any(rows["samples"].any() for key, rows in self._told.items() if key.stream.group == group.name)

    def _executors(self, host: str) -> int:
        return sum(int(rows["executors"][-1]) for rows in _of_host(self._told, host))

    def compute(self, measured: Range, assumptions: list[str]) -> Range:
        """Returns the compute time of a step without data workers on the same cores."""
        crowded = any(self._executors(name) + self._ranks > host.cores for name, host in self._trainers.items())
        saturated = any(host.rate >= CPU_BUSY / 100 * host.cores for host in self._trainers.values())
        if not (saturated and crowded):
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
        mine = {key: rows for key, rows in self._told.items() if key.stream.group == group}
        made = [rows.where(rows["samples"] > 0) for rows in mine.values()]
        value, supply = (quantity.of(mine.values()) for quantity in (_SAMPLE_CPU, SUPPLY))
        if not supply or value is None:
            return None, None
        produce = 1 / supply
        cpu, spread = _spread(value, _each(_SAMPLE_CPU, made)), _spread(produce, _each(_SAMPLE_TIME, made))
        low, middle, high = (
            self._pause(sorted({key.stream.host for key in mine}), busy, value)
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
            others = known.others if host in self._trainers else 0.0
            found.append(pause_of(busy, self._executors(host), known.cores - others, cpu))
        return sum(found) / len(found)


def _cores(group: PlannedGroup, hosts: Mapping[Stream, Table]) -> int:
    """Returns the cores that each host of a group may use."""
    cores = [int(rows["cores"][-1]) for stream, rows in hosts.items() if stream.group == group.name]
    if not cores:
        raise not_enough(f"the hosts of {group.name} wrote no metrics: how many cores they have is not known")
    return min(cores)


def _facts(
    group: PlannedGroup,
    hosts: Mapping[Stream, Table],
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

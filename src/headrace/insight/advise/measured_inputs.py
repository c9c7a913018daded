"""What a run tells the model, as values, and what the network of a host carries. Pure.

`headrace.insight.advise.calibrate` reads the values from a run's metrics. A network carries what a run measured, else
what its job limits it to. A link that is busy most of the time shows what it carries: bytes sent / seconds in which it
was sending. A link that is seldom busy shows nothing, and counts with its limit, else with the published bandwidth of
its type.

Two links lie between a data host and a host that trains, and what is measured is the narrower of them. Where the hosts
that train take in nearly all that theirs is known to carry, it is theirs: more data hosts bring no more bytes. Else
it is taken to be that of the data hosts, of which every further host has one more; unless that agrees with what is
known of it, a sentence says that it is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.catalog.instance_types import speed
from headrace.errors import UsageError
from headrace.insight.figures.columns import Key, Table
from headrace.insight.figures.figure import Window
from headrace.insight.figures.quantities import BANDWIDTH, LINK
from headrace.insight.figures.run_files import PlannedGroup
from headrace.insight.performance_model import Range, Workload
from headrace.insight.verdicts.thresholds import LINK_BUSY


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

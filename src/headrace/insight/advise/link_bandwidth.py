"""What the network of a host carries: as a run measured it, else as its job limits it. Pure.

A link that is busy most of the time shows what it carries: bytes sent / seconds in which it was sending. A link that is
seldom busy shows nothing, and counts with what the job limits it to, else with the published bandwidth of its type.

Two links lie between a data host and a host that trains, and what is measured is the narrower of them. Where the hosts
that train take in nearly all that theirs is known to carry, it is theirs: more data hosts bring no more bytes. Else
it is taken to be that of the data hosts, of which every further host has one more; unless that agrees with what is
known of it, a sentence says that it is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.catalog.instance_types import speed
from headrace.insight.advise.measured_inputs import GroupFacts
from headrace.insight.figures.columns import Key, Table
from headrace.insight.figures.quantities import LINK, Quantity
from headrace.insight.verdicts.thresholds import LINK_BUSY

GIGABIT = 1e9 / 8
MEGABIT = 1e6 / 8

FULL = 0.8
"""From this share of its known bandwidth on a link that is busy counts as full: headings, acknowledgements and the
shaping of a link take the rest."""

_WHILE_SENDING = Quantity("bandwidth", "bytes/s", "sent", "sending")


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
    return _WHILE_SENDING.of(servers) or None if busy is not None and busy >= LINK_BUSY else None


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

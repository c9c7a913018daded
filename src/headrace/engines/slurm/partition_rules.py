"""What a partition of Slurm allows, and what of a job it would let wait for ever. Pure.

Slurm takes a job that its partition does not allow, unless the cluster enforces limits at once, and lets it wait with
the reason PartitionTimeLimit, PartitionNodeLimit or PartitionConfig.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.engines.slurm.slurm_state import seconds_of, values_of
from headrace.job.model.engine_options import SlurmNodes

_OPTIONS = ("-p", "--part")  # of sbatch, which takes a name's beginning too


class Partition(NamedTuple):
    """One partition, as ``scontrol show partition`` has it.

    Attributes:
        name: its name.
        is_default: whether a job without a partition goes there.
        values: all that Slurm says of it, by key.
    """

    name: str
    is_default: bool
    values: Mapping[str, str]

    @property
    def longest(self) -> int:
        """The seconds that it allows a job; 0 without a limit."""
        return seconds_of(self.values.get("MaxTime", ""))

    def number(self, key: str) -> int | None:
        """Returns a number of it; None where there is no limit."""
        text = self.values.get(key, "")
        return int(text) if text.isdecimal() else None


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Reads what ``scontrol -o show partition`` printed: one line a partition."""
    rows = [values_of(line) for line in text.splitlines()]
    return tuple(
        Partition(row["PartitionName"], row.get("Default") == "YES", row) for row in rows if "PartitionName" in row
    )


def partition_of(nodes: SlurmNodes, partitions: Sequence[Partition]) -> Partition | None:
    """Returns the partition of some nodes: the named one, else the default; None where Slurm chooses, or has none."""
    if any(option.startswith(_OPTIONS) for option in nodes.options):
        return None
    found = [each for each in partitions if (each.name == nodes.partition if nodes.partition else each.is_default)]
    return found[0] if found else None


def longest_time(asked: Sequence[SlurmNodes], partitions: Sequence[Partition]) -> int:
    """Returns the seconds that the partitions of a job allow it; 0 when there is no limit, or it is not known."""
    found = [partition_of(nodes, partitions) for nodes in asked]
    return min((each.longest for each in found if each is not None and each.longest), default=0)


def doubts(group: str, count: int, nodes: SlurmNodes, max_run: float, partitions: Sequence[Partition]) -> Iterator[str]:
    """Yields why a group would get no nodes, in sentences.

    Args:
        group: its name.
        count: of its hosts.
        nodes: what they are asked for with.
        max_run: seconds of the job, at most.
        partitions: of the cluster.
    """
    names = [each.name for each in partitions]
    for name in (nodes.partition or "").split(","):
        if name and name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            listed = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            yield f"{group}: Slurm has no partition {name!r}; {listed}"
    partition = partition_of(nodes, partitions)
    if partition is None:
        return
    where = f"{group}: the partition {partition.name}"
    if 0 < partition.longest < max_run and not nodes.qos:  # a qos may stand over the limits of a partition
        yield (
            f"{where} allows a job {partition.longest} s and max_run is {max_run:g} s: it would wait for ever "
            f"(PartitionTimeLimit); set stopping_condition.max_run"
        )
    for key, words in (("MaxNodes", "allows a job"), ("TotalNodes", "has")):
        most = partition.number(key)
        if most is not None and most < count and not (nodes.qos and key == "MaxNodes"):
            yield f"{where} {words} {most} nodes and {count} are asked for: it would wait for ever (PartitionNodeLimit)"
    if partition.values.get("State", "UP") != "UP":
        yield f"{where} is {partition.values['State']}: it starts no jobs now"
    for key, asked in (("AllowAccounts", nodes.account), ("AllowQos", nodes.qos)):
        allowed = partition.values.get(key, "ALL")
        if asked and allowed != "ALL" and asked not in allowed.split(","):
            yield f"{where} does not take {asked!r} ({key}={allowed}): it would wait for ever (PartitionConfig)"


def is_loopback(address: str) -> bool:
    """Tells whether a text is an address that leads back to the machine itself, or its usual name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.partition(".")[0] == "localhost"

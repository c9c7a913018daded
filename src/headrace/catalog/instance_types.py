"""The instance types that SageMaker trains on, and their shapes.

The shapes are in `instance_types.csv` beside this module, with their sources. The module reads this file and nothing
else.
"""

from __future__ import annotations

import csv
import difflib
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class InstanceShape:
    """What one instance has.

    Attributes:
        vcpus: virtual CPUs.
        memory_gib: memory in GiB.
        gpus: NVIDIA devices; 0 for a machine without one.
    """

    vcpus: int
    memory_gib: float
    gpus: int


@dataclass(frozen=True)
class InstanceSpeed:
    """How fast one instance is, as published.

    Attributes:
        clock_ghz: sustained clock of a core. It compares cores of one generation, and only roughly those of different
            ones.
        network_gbps: bandwidth that its network always has (the baseline, not the burst), Gbit/s.
    """

    clock_ghz: float | None
    network_gbps: float | None


def parse(lines: Iterable[str]) -> dict[str, InstanceShape | None]:
    """Reads the table.

    Args:
        lines: of a CSV file with the columns instance_type, vcpus, memory_gib and gpus; `#` starts a comment line.

    Returns:
        The shape of every type, None where the table leaves it blank.

    Raises:
        ValueError: a value that is not a number, or a type that stands twice.
    """
    table: dict[str, InstanceShape | None] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        name = row["instance_type"]
        if name in table:
            raise ValueError(f"{name} comes twice")
        has_shape = bool(row["vcpus"])
        table[name] = (
            InstanceShape(int(row["vcpus"]), float(row["memory_gib"]), int(row["gpus"])) if has_shape else None
        )
    return table


def parse_speeds(lines: Iterable[str]) -> dict[str, InstanceSpeed]:
    """Reads clocks and networks.

    Args:
        lines: as `parse` takes them, with the columns clock_ghz and network_gbps; a blank means unknown.
    """
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["instance_type"]: InstanceSpeed(_known(row["clock_ghz"]), _known(row["network_gbps"])) for row in rows}


def _known(text: str) -> float | None:
    return float(text) if text else None


_LINES = Path(__file__).with_name("instance_types.csv").read_text(encoding="utf-8").splitlines()
_SHAPES = parse(_LINES)
_SPEEDS = parse_speeds(_LINES)

KNOWN: frozenset[str] = frozenset(_SHAPES)
"""Every instance type of a SageMaker training job."""


def shape(name: str) -> InstanceShape | None:
    """Returns the shape of an instance type, None when the type or its shape is unknown."""
    return _SHAPES.get(name)


@functools.lru_cache(maxsize=100)  # it takes a millisecond, and a wrong job is read more than once
def hint_for(name: str) -> str:
    """Returns which types a name that is none of them may stand for: the nearest, and those of its family.

    >>> hint_for("c5.9xlrge")
    "did you mean 'ml.c5.9xlarge'? ml.c5 has xlarge, 2xlarge, 4xlarge, 9xlarge, 18xlarge"
    >>> hint_for("ml.p4")
    'there are ml.p4d.24xlarge, ml.p4de.24xlarge'
    """
    full = re.sub("[-_ ]", ".", name.lower())
    full = full if full.startswith("ml.") else f"ml.{full}"
    family, _, size = full.removeprefix("ml.").partition(".")
    if not size:
        begin_so = sorted((other for other in KNOWN if other.startswith(full)), key=_by_size)
        return f"there are {', '.join(begin_so)}" if family and begin_so else "e.g. 'ml.c5.xlarge'"
    near = difflib.get_close_matches(full, sorted(KNOWN), n=1, cutoff=0.8)
    sizes = [other.rpartition(".")[2] for other in sorted(KNOWN, key=_by_size) if other.startswith(f"ml.{family}.")]
    words = [f"did you mean {near[0]!r}?"] if near else []
    words += [f"ml.{family} has {', '.join(sizes)}"] if sizes and full not in KNOWN else []
    return " ".join(words) or "e.g. 'ml.c5.xlarge'"


def _by_size(name: str) -> tuple[str, int, str]:
    size = _SHAPES.get(name)
    return name.rpartition(".")[0], 0 if size is None else size.vcpus, name


def speed(name: str) -> InstanceSpeed:
    """Returns clock and network of an instance type; what is unknown is None."""
    return _SPEEDS.get(name, InstanceSpeed(None, None))


_BANDWIDTH = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([kmg])bit")


def parse_bandwidth(text: str) -> int:
    """Returns bits per second.

    >>> parse_bandwidth("200mbit"), parse_bandwidth("1.5gbit")
    (200000000, 1500000000)

    Raises:
        ValueError: not a number and ``kbit``, ``mbit`` or ``gbit``, or below 8 kbit.
    """
    match = _BANDWIDTH.fullmatch(text)
    bits = round(float(match[1]) * {"k": 10**3, "m": 10**6, "g": 10**9}[match[2]]) if match else 0
    if not 8000 <= bits <= 10**13:
        raise ValueError(f"{text!r} is not a bandwidth, e.g. 200mbit; at least 8kbit")
    return bits

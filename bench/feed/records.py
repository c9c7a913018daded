"""What is kept of a measurement: one record a window, one line of CSV a record.

A window is `batches` batches delivered in `seconds` of wall time. CPU seconds are those of exactly the named processes
within the window, read from the kernel's per-process CPU clocks (all threads, also ended ones, nanoseconds):

* `cpu_trainer_s`: the process that calls `next()`;
* `cpu_receiver_s`: processes that receive on the trainer's behalf (only headrace has one: its receiver);
* `cpu_others_s`: all other processes of the contender: workers, servers, and those that they started.

Latencies are windows of one batch. A contender that fails leaves a record with `error` and no figures.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Record:
    """One window of one contender. Seconds and bytes."""

    row: str
    variant: str
    contender: str
    repeat: int
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0
    cpu_trainer_s: float = 0.0
    cpu_receiver_s: float = 0.0
    cpu_others_s: float = 0.0
    settings: str = "{}"
    error: str = ""

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.batches / self.seconds

    @property
    def gigabytes(self) -> float:
        """10^9 bytes."""
        return self.bytes / 1e9

    @property
    def trainer_cpu_per_gb(self) -> float:
        """CPU seconds per GB of the trainer and its receiver."""
        return (self.cpu_trainer_s + self.cpu_receiver_s) / self.gigabytes

    @property
    def cpu_per_gb(self) -> float:
        """CPU seconds per GB of all processes."""
        return (self.cpu_trainer_s + self.cpu_receiver_s + self.cpu_others_s) / self.gigabytes

    def setting(self, name: str) -> object:
        """Returns one of the contender's settings."""
        return json.loads(self.settings)[name]


COLUMNS = tuple(field.name for field in fields(Record))
_TYPES = {"repeat": int, "batches": int, "bytes": int}
_FLOATS = ("seconds", "cpu_trainer_s", "cpu_receiver_s", "cpu_others_s")


def write(path: Path, records: Iterable[Record]) -> None:
    """Appends records to a CSV file; makes it, with its header, when it is not there."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        for record in records:
            line = asdict(record)
            writer.writerow(line | {name: f"{line[name]:.9f}" for name in _FLOATS})


def read(path: Path) -> list[Record]:
    """Reads what `write` wrote."""
    with path.open(newline="") as file:
        return [_record(line) for line in csv.DictReader(file)]


def _record(line: dict[str, str]) -> Record:
    values: dict[str, object] = dict(line)
    for name, kind in _TYPES.items():
        values[name] = kind(line[name])
    for name in _FLOATS:
        values[name] = float(line[name])
    return Record(**values)  # type: ignore[arg-type]

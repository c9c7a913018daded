"""How contenders are timed: interleaved windows of steady streams.

A contender is opened once and gives one long stream of batches. A window first takes batches for a while (`settle`), so
that what was fetched ahead during the pause is used up and producers and consumer are in their steady state; then the
clocks are read, `count` batches are taken, the clocks are read again. So a window counts as many batches made as
batches taken, whatever a contender fetches ahead. Windows go A B C A B C ..., and ratios are taken within one round, so
that what changes on the machine from round to round hits all alike. While one contender is measured the others are full
and asleep: before each window there is a pause until that is so (`wait_until_idle`). Without it the peers whose client
runs as threads of the trainer, tf.data service above all, would go on filling their buffers at the next one's expense.
"""

from __future__ import annotations

import abc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psutil
from bench.feed.records import Record

from headrace.measuring.windows import take_for

RECEIVER = "headrace.feed.client.receiver"
LEAST = 5  # batches in a window
IDLE_SHARE = 0.05  # of a core: what processes that have nothing to do may use
IDLE_SECONDS = 10.0  # that they have for filling their buffers
Consume = Callable[[Any], object]


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        repeats: windows of each contender.
        seconds: wanted length of a window.
        settle: seconds before a window.
        scale: factor for sizes and counts; below 1 for a quick look that says nothing about speed.
    """

    repeats: int = 5
    seconds: float = 0.8
    settle: float = 0.2
    scale: float = 1.0

    def scaled(self, number: int, least: int = 1) -> int:
        """Returns a size or count, smaller for a quick look."""
        return max(least, int(number * self.scale))


QUICK = Effort(repeats=2, seconds=0.05, settle=0.02, scale=0.02)


class Contender(abc.ABC):
    """One way to do the work.

    Attributes:
        name: as in the table.
        settings: what it ran with; kept in the raw data.
        resources: closed with it.
    """

    name: str

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.resources = ExitStack()

    @abc.abstractmethod
    def open(self) -> Iterator[Any]:
        """Starts it. Returns an endless stream of batches."""

    def close(self) -> None:
        """Ends its processes."""
        self.resources.close()


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time that a process has used, from its CPU clock; see clock_getcpuclockid(3)."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


def processes(roots: Iterable[int]) -> dict[int, bool]:
    """Returns processes and their descendants: pid to whether it is a receiver."""
    found = {}
    for root in roots:
        try:
            process = psutil.Process(root)
            for each in (process, *process.children(recursive=True)):
                found[each.pid] = RECEIVER in each.cmdline()
        except psutil.NoSuchProcess:
            continue
    return found


def children() -> set[int]:
    """Returns the children of this process."""
    return {child.pid for child in psutil.Process().children()}


class Cpu:
    """Measures the CPU seconds of the trainer, its receivers, and the other processes of one contender.

    Args:
        roots: the processes that the contender has started; what those start is counted too. A process that ends while
            it is measured is not.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self._before = {pid: (receives, cpu_seconds(pid)) for pid, receives in processes(roots).items()}
        self._trainer = time.process_time()

    def read(self) -> tuple[float, float, float]:
        """Returns what was used since it was made."""
        trainer, receivers, others = time.process_time() - self._trainer, 0.0, 0.0
        for pid, (receives, before) in self._before.items():
            try:
                used = cpu_seconds(pid) - before
            except OSError:
                continue
            if receives:
                receivers += used
            else:
                others += used
        return trainer, receivers, others


def wait_until_idle(roots: Iterable[int], look: float, seconds: float = IDLE_SECONDS) -> bool:
    """Waits until contenders have filled their buffers. Returns False if they are busy after `seconds`.

    Args:
        roots: their processes; this one, where some have threads, is looked at too.
        look: for how many seconds they must be idle.
        seconds: how long to wait.
    """
    roots, deadline = list(roots), time.monotonic() + seconds
    while True:
        cpu, begun = Cpu(roots), time.monotonic()
        time.sleep(look)
        if sum(cpu.read()) <= IDLE_SHARE * (time.monotonic() - begun):
            return True
        if time.monotonic() > deadline:
            return False


class Running:
    """An open contender: its stream and its processes."""

    def __init__(self, contender: Contender, effort: Effort) -> None:
        before = children()
        self.contender = contender
        self.effort = effort
        self.stream = contender.open()
        self.first = next(self.stream)
        self.roots = children() - before

    def window(self, consume: Consume | None = None, group: int = 1) -> dict[str, Any]:
        """Measures one window, of a multiple of `group` batches. Returns fields of a record."""
        take_for(self.stream, self.effort.settle, consume, least=LEAST, group=group)
        cpu = Cpu(self.roots)
        batches, seconds = take_for(self.stream, self.effort.seconds, consume, least=LEAST, group=group)
        trainer, receiver, others = cpu.read()
        return {
            "batches": batches,
            "seconds": seconds,
            "cpu_trainer_s": trainer,
            "cpu_receiver_s": receiver,
            "cpu_others_s": others,
            "settings": json.dumps(self.contender.settings),
        }

    def close(self) -> None:
        """Ends the contender."""
        del self.stream
        self.contender.close()


@dataclass
class Bench:
    """The measuring of one row: how long, and where the records go."""

    row: str
    effort: Effort
    records: list[Record] = field(default_factory=list)

    def keep(self, variant: str, contender: str, repeat: int, **fields: Any) -> Record:
        """Keeps a record, and tells it on stderr."""
        record = Record(self.row, variant, contender, repeat, **fields)
        self.records.append(record)
        if record.error:
            text = f"failed: {record.error}"
        else:
            text = f"{record.batches} in {record.seconds:.3f} s ({record.rate:.1f}/s, {record.gigabytes:.2f} GB)"
        print(f"  {self.row} {variant} {contender} #{repeat}: {text}", file=sys.stderr, flush=True)
        return record

    @staticmethod
    def _roots(running: Sequence[Running]) -> list[int]:
        return [root for runner in running for root in runner.roots]

    def interleave(
        self,
        contenders: Sequence[Contender],
        batch_bytes: int,
        variants: dict[str, Consume | None] | None = None,
        check: Consume | None = None,
        group: int = 1,
    ) -> None:
        """Measures contenders in turn, for each variant of what the trainer does with a batch.

        Args:
            contenders: those that do the same work.
            batch_bytes: of payload in one batch.
            variants: name to what is done with every batch; by default it is only dropped.
            check: called once with every contender's first batch; raises if it is not what was asked for.
            group: batches that arrive together; windows hold whole groups.
        """
        variants = variants or {"": None}
        with ExitStack() as stack:
            running = []
            for contender in contenders:
                try:
                    runner = Running(contender, self.effort)
                except Exception as error:  # noqa: BLE001 - a contender that cannot do the work is a result: it is kept and shown
                    traceback.print_exc()
                    contender.close()
                    for variant in variants:
                        text = f"{type(error).__name__}: {error}".splitlines()[0]
                        self.keep(variant, contender.name, 0, error=text, settings=json.dumps(contender.settings))
                    continue
                stack.callback(runner.close)
                if check is not None:
                    check(runner.first)
                del runner.first
                running.append(runner)
            for repeat in range(self.effort.repeats):
                for variant, consume in variants.items():
                    for runner in running:
                        if not wait_until_idle(self._roots(running), self.effort.settle):
                            print(f"  {self.row}: a contender is busy while nobody reads it", file=sys.stderr)
                        told = runner.window(consume, group)
                        size = told["batches"] * batch_bytes
                        self.keep(variant, runner.contender.name, repeat, bytes=size, **told)

"""Stores the record of a run in an object store while it grows, as segments (`headrace.runs.segments`).

It is started as `python -m headrace.hosting.helpers.store_record RUN_DIR`, and looks every `interval` seconds until
it is ended, with any signal: another one goes on where it was. A place that cannot be written is tried again, with a
warning on standard error when that begins and when it is over. With the arguments `last SECONDS` behind RUN_DIR, when
the run has finished and nobody writes any more, it stores what is left and ends: with 0, or, when no try succeeds in so
many seconds, with 1 and ``error: ...`` as the last line of standard error. With `now` in place of `last` it does the
same for a run that another process goes on with: its record is not said to be complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.hosting.helpers.helper_main import error_line, work
from headrace.instance.storage import Store
from headrace.runs import RunPaths
from headrace.runs.run_paths import ENGINE
from headrace.runs.segment_writer import SegmentWriter

NAME = "store_record"
LAST = "last"
NOW = "now"
MOST_SECONDS = 60.0  # between two tries at a place that cannot be written
MOST_SECONDS_LAST = 10.0  # the same, when the run has finished and somebody waits


class RecordOrder(msgspec.Struct, frozen=True):
    """`engine/store_record.json`.

    Attributes:
        place: ``s3://bucket/prefix``, below which runs have their records.
        interval: seconds between two segments.
        writer: name of the sequence of segments.
    """

    place: str
    interval: float
    writer: str = ENGINE


def order_of(run: RunPaths) -> RecordOrder:
    """Reads the order of a run. Raises OSError or msgspec.DecodeError."""
    return msgspec.json.decode(_order_file(run).read_bytes(), type=RecordOrder)


def write_order(run: RunPaths, order: RecordOrder) -> None:
    """Writes the order of a run, with which it has a record to store. Raises OSError."""
    run.engine.mkdir(exist_ok=True)
    _order_file(run).write_bytes(msgspec.json.format(msgspec.json.encode(order)) + b"\n")


def state_file(run: RunPaths) -> Path:
    """Returns the file that says what is stored."""
    return run.engine / "segments.json"


def _order_file(run: RunPaths) -> Path:
    return run.engine / f"{NAME}.json"


@contextlib.contextmanager
def _alone(run: RunPaths) -> Iterator[None]:
    """Waits for another process that stores this record, which has been killed and is about to end."""
    with _order_file(run).open("rb") as order:
        fcntl.flock(order, fcntl.LOCK_EX)
        yield


def follow(writer: SegmentWriter, interval: float, stop: int) -> None:
    """Stores what is new again and again, until the descriptor `stop` can be read."""
    failures = 0
    told = ""
    pause = 0.0
    while not select.select([stop], [], [], pause)[0]:
        began = time.monotonic()
        try:
            writer.store()
        except (HeadraceError, OSError) as error:
            failures += 1
            pause = min(MOST_SECONDS, interval * 2 ** min(failures, 10))
            if (line := error_line(error)) != told:
                told = line
                print(f"warning: the record is not stored: {line}; trying again", file=sys.stderr, flush=True)
            continue
        if told:
            print("the record is stored again", file=sys.stderr, flush=True)
        failures, told = 0, ""
        pause = max(0.0, interval - (time.monotonic() - began))


def finish(writer: SegmentWriter, seconds: float, last: bool = True) -> None:
    """Stores all that is left. Raises the error of the last try that could begin in so many seconds.

    Args:
        writer: what stores.
        seconds: at most so many.
        last: the run has finished, and with this its record is complete.
    """
    deadline = time.monotonic() + seconds
    pause = 1.0
    while True:
        try:
            while writer.store(last) and not last:
                pass
            return
        except HeadraceError:
            if time.monotonic() + pause >= deadline:
                raise
        time.sleep(pause)
        pause = min(MOST_SECONDS_LAST, 2 * pause)


def main(paths: RunPaths) -> None:
    """Entry point."""
    order = order_of(paths)
    with _alone(paths), Store() as store:
        writer = SegmentWriter(paths, store, order.place, order.writer, state_file(paths))
        if len(sys.argv) > 2:
            finish(writer, float(sys.argv[3]), last=sys.argv[2] == LAST)
            return
        stop, stop_end = os.pipe()
        os.set_blocking(stop_end, False)
        signal.set_wakeup_fd(stop_end)
        signal.signal(signal.SIGTERM, lambda *_: None)  # the segment that is being written still goes
        follow(writer, order.interval, stop)


if __name__ == "__main__":
    sys.exit(work(main))

"""Fills a run's channels before its programs start: `python -m headrace.engines.local.stage RUN_DIR`.

Every channel of the order is listed. A `File` channel is downloaded and appears under its name when all of it is
there; for a channel that is served while the job runs (`serve_channels`) the listing is kept. What was interrupted goes
on where it was when the process is started again.

Exit codes: 0, 1 with ``error: ...`` as the last line of standard error, 143 after SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.instance.channels import filling, listing, placing
from headrace.instance.channels.order import AUGMENTED, STAGE, ChannelOrder, StageOrder, read_order
from headrace.instance.storage import Store
from headrace.runs import EventWriter, RunPaths
from headrace.runs.events import ChannelProgress

WRITER = "stage"
MANIFEST = "manifest"  # copy of an augmented manifest, in the channel's area
STOPPED = 128 + signal.SIGTERM
EVERY = 0.5  # seconds between two events of a channel


class _Stopped(BaseException):
    """SIGTERM came."""


class _Reporter:
    """Writes how far a channel is, now and then."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._last = 0.0

    def changed(self, tally: filling.Tally) -> None:
        """A file has come."""
        if time.monotonic() - self._last >= EVERY:
            self.say(tally)

    def say(self, tally: filling.Tally) -> None:
        """Writes it now."""
        self._last = time.monotonic()
        self._events.write(
            ChannelProgress(
                t=time.time(),
                channel=tally.channel,
                files=tally.files,
                files_total=tally.files_total,
                bytes=tally.bytes,
                bytes_total=tally.bytes_total,
            )
        )


def stage(order: StageOrder, store: Store, events: EventWriter) -> None:
    """Stages all channels of an order, one after the other.

    Raises:
        HeadraceError: one cannot be; the message names it.
        OSError: a link cannot be made.
    """
    for channel in order.channels:
        area = order.area(channel.name)
        area.mkdir(parents=True, exist_ok=True)
        if not channel.is_piped and not channel.is_mounted:
            reporter = _Reporter(events)
            tally = filling.fill(channel, area, store, reporter.changed)
            reporter.say(tally)
            placing.place(order, channel, area / filling.DATA)
        else:
            _look(channel, area, store)


def _look(channel: ChannelOrder, area: Path, store: Store) -> None:
    """Keeps what a channel consists of, so that what is wrong with it is known before the programs start."""
    try:
        if channel.data_type == AUGMENTED:
            listing.list_lines(channel, store)
            store.download(store.look(channel.uri), area / MANIFEST)
        else:
            listing.save(listing.list_items(channel, store), area)
    except HeadraceError as error:
        raise filling.named(channel.name, error) from error


def one_line(error: BaseException) -> str:
    """Returns an error in the line in which a process of the engine says why it failed."""
    words = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    hint = f" (hint: {error.hint})" if isinstance(error, HeadraceError) and error.hint else ""
    return f"error: {words}{hint}".replace("\n", " ")


def main() -> int:
    """Entry point."""
    signal.signal(signal.SIGTERM, _stop)
    run = RunPaths(Path(sys.argv[1]))
    try:
        order = read_order(run.root, STAGE)
        with EventWriter(run.events(WRITER)) as events, Store() as store:
            stage(order, store, events)
    except (HeadraceError, OSError, msgspec.DecodeError) as error:
        print(one_line(error), file=sys.stderr)
        return 1
    except _Stopped:
        return STOPPED
    return 0


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is being stopped already
    raise _Stopped


if __name__ == "__main__":
    sys.exit(main())

"""Fills a run's channels before its programs start: `python -m headrace.hosting.helpers.stage RUN_DIR`.

Every channel of the order is listed. Of a `File` channel, what hosts of this machine get is downloaded, and
appears under its name when all of it is there. For a channel that is served while the job runs (`serve_channels`) the
listing is kept. What was interrupted goes on where it was when the process is started again.

Exit codes: 0, or 1 with ``error: ...`` as the last line of standard error, also after SIGTERM.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.hosting.helpers.helper_main import work
from headrace.instance.channels import channel_links, download, object_listing
from headrace.instance.channels.stage_orders import AUGMENTED, STAGE, ChannelOrder, StageOrder, read_order
from headrace.instance.storage import Store
from headrace.runs import EventWriter, RunPaths
from headrace.runs.events import ChannelProgress

WRITER = "stage"
MANIFEST = "manifest"  # copy of an augmented manifest, in the channel's area
EVERY = 0.5  # seconds between two events of a channel


class _Reporter:
    """Writes how far a channel is, now and then."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._last = 0.0

    def changed(self, tally: download.Tally) -> None:
        """A file has come. That it was the last is said when the channel is complete, once."""
        if tally.files < tally.files_total and time.monotonic() - self._last >= EVERY:
            self.say(tally)

    def say(self, tally: download.Tally) -> None:
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
            sources, places = order.sources(channel.name), order.places_of(channel)
            tally = download.fill(channel, area, store, reporter.changed, sources, places)
            reporter.say(tally)
            if not order.isolated:
                channel_links.place(order, channel, area / download.DATA)
        else:
            _look(channel, area, store)


def _look(channel: ChannelOrder, area: Path, store: Store) -> None:
    """Keeps what a channel consists of, so that what is wrong with it is known before the programs start."""
    try:
        if channel.data_type == AUGMENTED:
            object_listing.list_lines(channel, store)
            store.download(store.look(channel.uri), area / MANIFEST)
        else:
            object_listing.save(object_listing.list_items(channel, store), area)
    except HeadraceError as error:
        raise download.named(channel.name, error) from error


def main(run: RunPaths) -> None:
    """Entry point."""
    order = read_order(run.root, STAGE)
    with EventWriter(run.events(WRITER)) as events, Store() as store:
        stage(order, store, events)


if __name__ == "__main__":
    sys.exit(work(main))

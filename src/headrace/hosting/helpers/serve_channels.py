"""Serves the Pipe and FastFile channels of a run: `python -m headrace.hosting.helpers.serve_channels RUN_DIR`.

It runs beside the agents, after `stage`. When every first FIFO and the mount are there it reports on standard
output that it is ready. SIGTERM ends it: mount and FIFOs are gone then.

An object that cannot be read ends it too, with exit code 1 after a report, and with it
the job. Programs see no end of their data then, but a broken FIFO or an error of their read.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from headrace.child_python import ChildReport
from headrace.errors import HeadraceError
from headrace.hosting.helpers.helper_main import report_failure
from headrace.hosting.helpers.stage import MANIFEST
from headrace.instance.channels import channel_links, mounts, object_listing
from headrace.instance.channels.object_listing import Line, parse_augmented
from headrace.instance.channels.pipes import Epochs, Pipe, share
from headrace.instance.channels.stage_orders import AUGMENTED, SERVE, ChannelOrder, StageOrder, read_order
from headrace.instance.paths import TreePaths
from headrace.instance.storage import Store
from headrace.runs import RunPaths

STOP = {signal.SIGTERM, signal.SIGINT}
FETCHERS = 16  # objects asked for at once, for all hosts together


class Server:
    """See the module.

    Args:
        order: the run's order.
        store: where the objects are.
    """

    def __init__(self, order: StageOrder, store: Store) -> None:
        self._order = order
        self._store = store
        self._pool = ThreadPoolExecutor(FETCHERS, "fetch")
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serves until SIGTERM. Raises HeadraceError or OSError."""
        self._clear()
        for channel in self._order.channels:
            if channel.is_piped:
                self._pipe(channel)
        mounted = [channel for channel in self._order.channels if channel.is_mounted]
        if mounted:
            threading.Thread(target=self._mount, args=(mounted,), name="mount", daemon=True).start()
        else:
            ChildReport(ready=True).send()
        signal.sigwait(STOP)

    def close(self) -> None:
        """Takes mount and FIFOs away."""
        self._clear()

    def _pipe(self, channel: ChannelOrder) -> None:
        contents = self._contents(channel)
        for host in self._order.hosts_of(channel):
            epochs = Epochs(channel, contents, channel.place(host), self._store, self._pool)
            Pipe(TreePaths(self._order.bases[host]).input_data, channel.name, epochs.pieces, self._failed).start()

    def _contents(self, channel: ChannelOrder) -> list[object_listing.Item] | list[Line]:
        area = self._order.area(channel.name)
        if channel.data_type == AUGMENTED:
            return parse_augmented(channel.name, (area / MANIFEST).read_bytes(), channel.uri, channel.attributes)
        return object_listing.load(area)

    def _mount(self, channels: list[ChannelOrder]) -> None:
        try:
            self._serve_mount(channels)
        except Exception as error:  # noqa: BLE001  (the boundary of the thread)
            self._failed(error)

    def _serve_mount(self, channels: list[ChannelOrder]) -> None:
        # Only here: the library and libfuse are an extra.
        from headrace.instance.channels import fastfile
        from headrace.instance.channels.blocks import Blocks

        shares = {}
        for channel in channels:
            items = object_listing.load(self._order.area(channel.name))
            for place in self._order.places_of(channel):
                shares[channel.name, place] = share(items, place, channel.shares)
        point = self._order.mount
        point.mkdir(parents=True, exist_ok=True)

        def ready() -> None:
            for channel in channels:
                channel_links.place(self._order, channel, point / channel.name)
            ChildReport(ready=True).send()

        system = fastfile.FileSystem(shares, Blocks(self._store, self._pool), ready, self._failed)
        fastfile.mount(system, point, self._order.run_id)

    def _failed(self, error: BaseException) -> None:
        """Ends this process, and so the job; called in any thread."""
        self._lock.acquire()  # only the first error counts; it is never released
        report_failure(error)
        self.close()
        os._exit(1)

    def _clear(self) -> None:
        for point in mounts.mounted_below(Path(self._order.folder)):
            mounts.unmount(point)
        for channel in self._order.channels:
            if channel.is_piped:
                channel_links.unlink_pipes(self._order, channel)


def main() -> int:
    """Entry point."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # in all threads; `Server.run` waits for them
    run = RunPaths(Path(sys.argv[1]))
    code = 1
    try:
        order = read_order(run.root, SERVE)
        server = Server(order, Store())
        try:
            server.run()
            code = 0
        finally:
            server.close()
    except (HeadraceError, OSError, msgspec.DecodeError) as error:
        report_failure(error)
    sys.stdout.flush()
    os._exit(code)  # threads that wait for a reader would wait on


if __name__ == "__main__":
    sys.exit(main())

"""What a host finds under a channel's name: a link to its share, made when the share is complete."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from headrace.instance.channels.stage_orders import ChannelOrder, StageOrder
from headrace.instance.paths import TreePaths


def place(order: StageOrder, channel: ChannelOrder, data: Path) -> None:
    """Links the shares of a channel into the trees of its hosts that are of this machine.

    Args:
        order: the run's order.
        channel: the channel.
        data: folder whose children ``0``, ``1`` ... are the shares of these hosts.

    Raises:
        OSError: a link cannot be made; FileExistsError if something else has the channel's name.
    """
    for host in order.hosts_of(channel):
        link(TreePaths(order.bases[host]).channel(channel.name), data / str(channel.place(host)))


def link(path: Path, target: Path) -> None:
    """Makes a symlink to an absolute target. One that is there already must lead to the same place."""
    try:
        path.symlink_to(target)
    except FileExistsError:
        if path.is_symlink() and path.readlink() == target:
            return
        raise


def unlink_pipes(order: StageOrder, channel: ChannelOrder) -> None:
    """Removes the FIFOs of a channel from the trees of its hosts that are of this machine."""
    for host in order.hosts_of(channel):
        folder = TreePaths(order.bases[host]).input_data
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for path in [Path(entry.path) for entry in entries if entry.name.startswith(f"{channel.name}_")]:
                if path.is_fifo():
                    path.unlink(missing_ok=True)

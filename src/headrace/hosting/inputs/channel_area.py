"""The stage area of a run, where its channels are downloaded, mounted and written to, and how it is removed.

`engines.planning.plan_channels` says what lies in it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from headrace.instance.channels import channel_links, mounts
from headrace.instance.channels.stage_orders import SERVE, STAGE, order_path, read_order
from headrace.runs import RunPaths

FOLDER = "channels"  # of the run
VIEWS = "views"  # in the area: what isolated hosts have written to their channels, work folders of their code
LINKS = "links"  # in the area: links of the user's folders, as views of them need them


def channel_area(paths: RunPaths) -> Path:
    """Returns the stage area of a run; it need not exist. A link in its place is not followed."""
    return paths.root.resolve() / FOLDER


def code_work(paths: RunPaths, host: str) -> Path:
    """Returns the folder in which the kernel prepares what a host changes of the code that it shares with others."""
    return channel_area(paths) / VIEWS / host / "code" / "work"


def remove_channels(paths: RunPaths) -> None:
    """Removes what a run's channels have left: mount, FIFOs, downloaded data. For a run that has ended."""
    folder = channel_area(paths)
    for point in mounts.mounted_below(folder):
        mounts.unmount(point)
    for name in (STAGE, SERVE):
        if order_path(paths.root, name).exists():
            try:
                order = read_order(paths.root, name)
            except (OSError, msgspec.DecodeError):  # the disk was full when it was written: nothing was served
                continue
            for channel in order.channels:
                channel_links.unlink_pipes(order, channel)
    remove_views(paths)
    shutil.rmtree(folder, ignore_errors=True)


def remove_views(paths: RunPaths) -> None:
    """Removes what the hosts of a run have written to their channels, when none of them runs."""
    if channel_area(paths).is_symlink():
        return
    folder = channel_area(paths) / VIEWS
    for here, names, _ in os.walk(folder):
        for name in names:  # an overlay's own folders are closed to everybody but root
            path = Path(here, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)

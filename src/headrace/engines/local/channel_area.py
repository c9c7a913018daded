"""The stage area of a run, and how it goes: what was downloaded is a copy, and the mount is nobody's any more.

Apart from `channels`, because the supervisor, which removes it, shall not load the submitting side's libraries.
"""

from __future__ import annotations

import shutil

import msgspec

from headrace.instance.channels import mounts, placing
from headrace.instance.channels.order import SERVE, STAGE, order_path, read_order
from headrace.runs import RunPaths, list_runs

FOLDER = "channels"  # of the run


def remove_channels(paths: RunPaths) -> None:
    """Takes away what a run's channels have left: mount, FIFOs, downloaded data. For a run that has ended."""
    folder = (paths.root / FOLDER).resolve()
    for point in mounts.mounted_below(folder):
        mounts.unmount(point)
    for name in (STAGE, SERVE):
        if order_path(paths.root, name).exists():
            try:
                order = read_order(paths.root, name)
            except (OSError, msgspec.DecodeError):  # the disk was full when it was written: nothing was served
                continue
            for channel in order.channels:
                placing.unlink_pipes(order, channel)
    shutil.rmtree(folder, ignore_errors=True)


def sweep_channels() -> None:
    """Removes the channels of runs whose every process was killed. For the start of another run."""
    for run in list_runs():
        folder = (run.paths.root / FOLDER).resolve()
        if folder.is_dir() and not run.supervised:
            remove_channels(run.paths)

"""What a run leaves on this machine outside its record, and its removal: by its supervisor at the end, by the caller
when the supervisor was killed, and by the next start of any run when there was no caller, or all were killed together.

* The temporary files of its programs: one folder in the machine's own, short enough for sockets in it. Its name is no
  secret and cannot be guessed before it is there; it is this user's alone, else it is none of ours (`private_folders`).
  Whoever has made it holds a lock of it for as long as he lives. A program that was killed cannot remove its temporary
  files: the agent of a host removes those of the host, who made the folder removes it.
* The stage area, where its channels are downloaded, mounted and written to (`engines.planning.plan_channels` says what
  lies in it).

Control groups have a sweep of their own (`limits.cgroups`): they may lie where no run can be read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.hosting.inputs import requirements
from headrace.hosting.inputs.requirements import ENVIRONMENTS, environments_dir
from headrace.instance.channels import channel_links, mounts
from headrace.instance.channels.stage_orders import SERVE, STAGE, order_path, read_order
from headrace.instance.lifeline import RUN_ID
from headrace.own_runs import started_here
from headrace.private_folders import new_folder, open_private, private_folders
from headrace.processes.process_table import read_proc
from headrace.runs import RunPaths, list_runs

_START, _HIDDEN = "headrace-", ".headrace-"  # of names: among other temporary files, and in other folders
_NAME = re.compile(r"\.?headrace-[0-9a-f]{8}-\w{8}")
_held: dict[Path, int] = {}  # descriptors with the locks of this process


def scratch_dir(key: str) -> Path:
    """Returns a folder for temporary files, made if this process has none yet. Raises OSError.

    Args:
        key: the run's id; with that of a host where each has a folder of its own.
    """
    folder = next((folder for folder in _held if folder.name.startswith(_prefix(key)) and folder.is_dir()), None)
    return _hold_new(_prefix(key)) if folder is None else folder


@contextlib.contextmanager
def passing_scratch(within: Path | None = None) -> Iterator[Path]:
    """Makes a folder for temporary files, and removes it at the end. What was killed in here before goes first.

    Args:
        within: where; the machine's folder for temporary files by default.

    Raises:
        OSError: it cannot be made.
    """
    sweep_scratch(within)
    folder = _hold_new(f"{_START if within is None else _HIDDEN}{os.urandom(4).hex()}-", within)
    try:
        yield folder
    finally:
        _remove(folder)


def _hold_new(prefix: str, within: Path | None = None) -> Path:
    while True:
        folder = new_folder(prefix, within)
        descriptor = open_private(folder)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:
            _held[folder] = descriptor
            return folder
        os.close(descriptor)  # somebody who swept has taken it away before it was held


def scratch_dirs(key: str) -> list[Path]:
    """Returns the folders that are there."""
    return [*private_folders(_prefix(key))]


def remove_scratch(key: str) -> None:
    """Removes the folders with all that is in them."""
    for folder in scratch_dirs(key):
        _remove(folder)


def sweep_scratch(within: Path | None = None) -> None:
    """Removes the folders of this user that no process holds. Raises OSError.

    Args:
        within: where; the machine's folder for temporary files by default.
    """
    for folder in private_folders(_START if within is None else _HIDDEN, within):
        if not _NAME.fullmatch(folder.name) or folder in _held:
            continue
        try:
            descriptor = open_private(folder)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        except BlockingIOError:
            pass  # it is in use
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    _remove_tree(folder)
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def _prefix(key: str) -> str:
    return f"{_START}{hashlib.sha256(key.encode()).hexdigest()[:8]}-"


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
    _remove_tree(channel_area(paths) / VIEWS)


def _remove_tree(folder: Path) -> None:
    """Removes a folder, and what is closed in it: the kernel closes folders of an overlay to everybody but root."""
    shutil.rmtree(folder, ignore_errors=True)
    for here, names, _ in os.walk(folder):  # what is left
        for name in names:
            path = Path(here, name)
            if not path.is_symlink():
                with contextlib.suppress(OSError):  # gone meanwhile, or another user's: whoever removes sees that too
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(paths: RunPaths) -> None:
    """Removes the temporary files and channels of a run that has ended, and environments that nobody makes any more."""
    remove_scratch(paths.id)
    remove_channels(paths)
    for folder in (environments_dir(), paths.root / ENVIRONMENTS):
        requirements.sweep(folder)


def sweep_leftovers() -> None:
    """Removes what runs of this user have left whose every process was killed."""
    requirements.sweep(environments_dir())
    sweep_scratch()
    for run in list_runs():
        if channel_area(run.paths).is_dir() and started_here(run.paths.root) and not run.supervised:
            remove_leftovers(run.paths)


def is_of_run(pid: int, run_id: str) -> bool:
    """Tells whether a process of this machine has the mark of a run. One that has ended has none."""
    try:
        return f"{RUN_ID}={run_id}".encode() in read_proc(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return False

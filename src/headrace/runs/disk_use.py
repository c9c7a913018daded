"""What a run holds on disk: how much that is, its removal, and files that its programs wrote where nobody had asked to
keep them. Links are never followed, and nothing outside is touched.

A directory disappears in one step: it is renamed to a name that no list of runs shows, and what is in it goes then.

Files that nobody keeps are looked for twice: on the host when its programs have ended (`written_since`), for the word
at the end of the run; and in the run's directory (`files_of`), which `headrace files` lists. What libraries leave for
themselves is not told: caches, and temporary files with random names.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.errors import UsageError
from headrace.held_file import alone_in
from headrace.name_order import by_number
from headrace.own_runs import leave_list
from headrace.runs.events import LeftFolder
from headrace.runs.run_paths import RunPaths, decode


class Ended(NamedTuple):
    """What a rule keeps or removes as one: a run that has ended, or a grid with its runs.

    Attributes:
        series: of which the newest stay: the name of a run's job; that of all grids.
        ended: when it did, in seconds since the epoch.
        runs: what it has here.
        grid: name of the grid; empty for a run.
    """

    series: str
    ended: float
    runs: tuple[RunPaths, ...]
    grid: str = ""


def size_of(paths: RunPaths) -> int:
    """Returns the bytes that a run takes on disk; a file with several names in it counts once."""
    total, counted = 0, set()
    for folder, _, files in os.walk(paths.root):
        for name in (".", *files):
            with contextlib.suppress(OSError):  # it is gone, or not this user's to look at
                status = os.lstat(f"{folder}/{name}")
                if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                    if (status.st_dev, status.st_ino) in counted:
                        continue
                    counted.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


def to_prune(entries: Iterable[Ended], older: float | None, keep: int, now: float) -> list[Ended]:
    """Returns what a rule does not keep, oldest first. Pure.

    Args:
        entries: what has ended.
        older: seconds since their end after which they go; None for any.
        keep: how many of the newest of each series stay, whatever their age.
        now: seconds since the epoch.
    """
    of_series: dict[str, list[Ended]] = {}
    for entry in sorted(entries, key=lambda entry: entry.ended, reverse=True):
        of_series.setdefault(entry.series, []).append(entry)
    beyond = [entry for mine in of_series.values() for entry in mine[keep:]]
    old = (entry for entry in beyond if older is None or now - entry.ended >= older)
    return sorted(old, key=lambda entry: entry.ended)


def remove_run(paths: RunPaths) -> None:
    """Removes the directory of a run that has ended, and all that is in it.

    Raises:
        UsageError: it is no directory of its own in the folder of runs: a link, for example, or another user's.
        OSError: something in it cannot be removed; what is left no longer looks like a run.
    """
    parent = os.open(paths.root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.stat(paths.root.name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            what = "a link" if stat.S_ISLNK(status.st_mode) else f"of user {status.st_uid}"
            raise UsageError(f"{paths.root} is {what}: only a folder of your own is removed", "rm removes a link")
        gone = f".{paths.root.name}.removed-{secrets.token_hex(4)}"
        with alone_in(paths.root):
            os.rename(paths.root.name, gone, src_dir_fd=parent, dst_dir_fd=parent)
        leave_list(paths.root.with_name(gone))
        _open_up(gone, parent)
        shutil.rmtree(f"/proc/self/fd/{parent}/{gone}")
    finally:
        os.close(parent)


def _open_up(name: str, parent: int) -> None:
    """Gives this user the rights to folders that he needs to remove what is in them."""
    for _, folders, _, place in os.fwalk(name, dir_fd=parent):
        for folder in folders:
            try:
                held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            except NotADirectoryError:  # a link, which is removed as one
                continue
            mode = stat.S_IMODE(os.fstat(held).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                Path(f"/proc/self/fd/{held}").chmod(mode | stat.S_IRWXU)
            os.close(held)


CACHES = (
    *("__pycache__", "*.pyc", ".cache", ".nv", ".triton", "triton", ".*_cache", ".ipynb_checkpoints", ".X11-unix"),
    *("torchinductor_*", "torch_extensions*", "torchelastic_*", "torch-*", "matplotlib-*", "numba*", "ccache*"),
    *("pip-*", "pip_*", "uv-*", "npm-*", "go-build*", "hsperfdata_*", "pymp-*", "joblib*", "ompi.*", "openmpi-*"),
    *("prte*", "pmix*", "vader_segment*", "nvidia-*", "*.lock", "*.sock", ".python-*", "headrace-*", ".nfs*"),
)
_RANDOM = ("tmp????????", "tmp????????.*", "tmp????????[_-]*")  # as `tempfile` makes them
NAMED = 3  # folders
LOOKED_AT = 200_000  # entries of a folder; what lies behind them is not counted
_PLACES = ("code", "model", "output/data", "output/intermediate", "checkpoints")  # of /opt/ml


class RunFile(NamedTuple):
    """A file of a run: its host (empty: of the run itself), its name there, where it is, and its bytes."""

    host: str
    name: str
    path: Path
    bytes: int


def is_cache(name: str) -> bool:
    """Tells whether a file or folder of that name is made by a library, for itself.

    >>> [is_cache(name) for name in ("torchinductor_me", "tmpab3_9xyz", "outp", "cache.npy")]
    [True, True, False, False]
    """
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*CACHES, *_RANDOM))


def clock_of(folder: Path) -> int:
    """Returns the time by the clock of a folder's file system, in ns: what is changed later has a later `st_ctime_ns`.
    Raises OSError."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_ctime_ns


def written_since(root: Path, since: int, without: Collection[str] = ()) -> tuple[int, int, list[LeftFolder]]:
    """Looks for the files below a folder that were written since then and have something in them.

    Args:
        root: the folder.
        since: see `clock_of`.
        without: folders and files that are not looked at, such as mount points.

    Returns:
        How many there are, their bytes, and the folders directly below with theirs, the largest first. What lies in
        `root` itself is told as `root`.
    """
    folders: dict[str, tuple[int, int]] = {}
    for path, status in _files(root, without):
        if status.st_ctime_ns >= since and status.st_size:
            inside = path.relative_to(root).parts
            name = str(root / inside[0]) if len(inside) > 1 else str(root)
            files, size = folders.get(name, (0, 0))
            folders[name] = files + 1, size + status.st_size
    largest = sorted(folders.items(), key=lambda item: (-item[1][1], item[0]))
    told = [LeftFolder(os.fsencode(name).decode(errors="replace"), *sums) for name, sums in largest]
    return sum(each.files for each in told), sum(each.bytes for each in told), told


def files_of(paths: RunPaths) -> Iterator[RunFile]:
    """Yields what a run holds of its programs: what each host wrote below its working directory and into the folders of
    ``/opt/ml`` that are kept, then model and output of the run, as far as they are on this machine.

    Of the working directory, which begins as a copy of the code, those files are told that were added or changed.
    """
    hosts = paths.root / "hosts"
    names = sorted(_names(hosts), key=by_number)
    for name in names:
        for place in _PLACES:
            folder = hosts / name / place
            for path, status in _files(folder):
                inside = path.relative_to(folder)
                if place != "code" or not _is_as_sent(paths.code / inside, status):
                    yield RunFile(decode(name), f"{place}/{inside}", path, status.st_size)
    for path, status in _files(paths.output):
        yield RunFile("", f"output/{path.relative_to(paths.output)}", path, status.st_size)


def _is_as_sent(sent: Path, status: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        original = sent.lstat()
        return (original.st_size, original.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    return False


def _files(root: Path, without: Collection[str] = ()) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields the files below a folder in order, without those of caches. What cannot be looked at is passed."""
    if root.is_symlink() or any(parent.is_symlink() for parent in (root.parent, root.parent.parent)):
        return  # it is shown from elsewhere
    seen = 0
    for name, folders, files in os.walk(root):
        folder = Path(name)
        folders[:] = sorted(each for each in folders if not is_cache(each) and str(folder / each) not in without)
        for path in (folder / each for each in sorted(files) if not is_cache(each)):
            seen += 1
            if seen > LOOKED_AT:
                return
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and str(path) not in without:
                    yield path, status


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []

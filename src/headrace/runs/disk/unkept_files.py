"""Files that the programs of a run wrote where nobody had asked to keep them.

They are looked for twice: on the host when its programs have ended (`written_since`), for the word at the end of the
run; and in the run's directory (`files_of`), which `headrace files` lists. Links are never followed. What libraries
leave for themselves is not told: caches, and temporary files with random names.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.name_order import by_number
from headrace.runs.events import LeftFolder
from headrace.runs.run_paths import RunPaths, decode

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

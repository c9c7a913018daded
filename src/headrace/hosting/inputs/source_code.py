"""The code of a run: a snapshot of the user's folder or an archive from here or S3, and his dependencies beside it."""

from __future__ import annotations

import fnmatch
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import UsageError
from headrace.hosting.inputs.archive import unpack
from headrace.instance import storage
from headrace.instance.storage import Store

SKIPPED = (".git", "__pycache__", ".venv*", ".headrace")


def bring_code(
    source: str, base: Path, dependencies: Sequence[str], target: Path, leave_out: Path, *, archive: bool
) -> None:
    """Makes the folder of the code.

    Args:
        source: a folder, a ``.tar.gz`` file or an ``s3://`` object of that kind; empty for no code.
        base: what relative paths are relative to.
        dependencies: files and folders that come to lie in the folder too, under their own names.
        target: the new folder; its parent exists.
        leave_out: a folder that is not copied, wherever it is met.
        archive: whether the source is an archive; one of ``s3://`` always is.

    Raises:
        UsageError: an archive that cannot be used, or a dependency with the name of something in the code.
        StorageError: an object that cannot be read.
        OSError: something cannot be read or written.
    """
    if storage.is_s3(source):
        fetched = target.with_name(f".{target.name}.tar.gz")
        try:
            with Store() as store:
                store.download(store.look(source), fetched)
            unpack(fetched, target, source)
        finally:
            fetched.unlink(missing_ok=True)
    elif archive:
        unpack(storage.local_path(source, base), target, source)
    elif source:
        snapshot(base / source, target, leave_out)
    else:
        target.mkdir()
    for dependency in dependencies:
        _add(base / dependency, target, leave_out)


def _add(dependency: Path, target: Path, leave_out: Path) -> None:
    name = Path(os.path.normpath(dependency)).name  # as the user calls it, also where it is a symlink
    if os.path.lexists(target / name):
        raise UsageError(
            f"dependencies: {dependency} cannot be put beside the code, which has {name!r} already",
            "rename one of them",
        )
    if dependency.is_dir():
        snapshot(dependency, target / name, leave_out)
    else:
        shutil.copy2(dependency, target / name)


def snapshot(source: Path, target: Path, leave_out: Path) -> None:
    """Copies a directory of code, so that a run keeps what it ran.

    Left out: version control, caches, virtual environments, the directory of all runs, and what is neither file nor
    directory nor symlink. A relative symlink that leads out of the directory is made absolute.

    Args:
        source: the user's directory.
        target: where the copy goes; it must not exist.
        leave_out: a directory that is not copied, wherever it is met.
    """
    target.mkdir()
    root, runs = os.path.realpath(source), os.path.realpath(leave_out)
    for folder, names, files in os.walk(source):
        here = Path(folder)
        there = target / here.relative_to(source)
        kept = [name for name in names if not _skipped(name) and os.path.realpath(here / name) != runs]
        for name in kept + files:
            path, copy = here / name, there / name
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                link = Path(os.readlink(path))  # noqa: PTH115  (Path.readlink is the same)
                place = Path(os.path.realpath(here / link))
                copy.symlink_to(link if link.is_absolute() or place.is_relative_to(root) else place)
            elif stat.S_ISDIR(mode):
                copy.mkdir()
            elif stat.S_ISREG(mode) and not _skipped(name):
                shutil.copy2(path, copy)
        names[:] = [name for name in kept if not (here / name).is_symlink()]


def _skipped(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in SKIPPED)

"""The code of a run: a snapshot of the user's folder or an archive from here or S3, and his dependencies beside it.

An archive may come from a stranger: none of its members is written outside its folder. The rules are those of
`tarfile`'s data filter, which not every Python 3.10 and 3.11 has: no absolute names, no ``..``, no links that lead out,
no devices and FIFOs, no set-user-id bits; who owned a file does not count. What breaks a rule is refused, and with it
the whole archive.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.errors import UsageError
from headrace.instance import storage
from headrace.instance.storage import Store
from headrace.instance.tree import copy_file

_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError)


def unpack(archive: Path, target: Path, name: str) -> None:
    """Unpacks a (compressed) tar file.

    Args:
        archive: the file.
        target: the new folder; its parent exists.
        name: what the archive is called in messages.

    Raises:
        UsageError: it is no archive, is damaged or breaks a rule; the folder is gone then.
        OSError: something cannot be written.
    """
    target.mkdir()
    try:
        with tarfile.open(archive) as members:
            for member in members:
                _unpack(members, member, target, name)
            while members.fileobj is not None and members.fileobj.read(1 << 20):
                pass  # to the end, where the checksum is
            _check_links(target, name)
    except _DAMAGED as error:
        shutil.rmtree(target)
        told = f"{name} is not an archive, or is damaged: {error}"
        raise UsageError(told, "make it with: tar -czf FILE -C FOLDER .") from error
    except BaseException:
        shutil.rmtree(target)
        raise


def _unpack(members: tarfile.TarFile, member: tarfile.TarInfo, target: Path, name: str) -> None:
    root = os.path.realpath(target)
    path = target / member.name
    parts = Path(member.name).parts
    if member.name.startswith("/") or ".." in parts:
        raise _refused(name, member, "leads out of the folder")
    if not parts:  # the folder itself, as `tar -C FOLDER .` has it
        return
    if not Path(os.path.realpath(path.parent)).is_relative_to(root):
        raise _refused(name, member, "leads out of the folder, through a link")
    if member.isdir():
        if path.is_symlink() or not path.is_dir():
            _make_room(path)
            path.mkdir(parents=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(path)
    if path.is_dir():
        raise _refused(name, member, "takes the place of a folder")
    if member.isreg():
        content = members.extractfile(member)
        assert content is not None  # it is a file
        with content, path.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        path.chmod((member.mode & 0o755) | 0o600)
        os.utime(path, (member.mtime, member.mtime))
    elif member.issym():
        leads_to = Path(os.path.realpath(os.path.normpath(Path(os.path.realpath(path.parent)) / member.linkname)))
        if member.linkname.startswith("/") or not leads_to.is_relative_to(root):
            raise _refused(name, member, f"is a link that leads out of the folder: {member.linkname}")
        path.symlink_to(member.linkname)
    elif member.islnk():
        there = target / member.linkname
        inside = not member.linkname.startswith("/") and Path(os.path.realpath(there)).is_relative_to(root)
        if not inside or not os.path.isfile(there):
            raise _refused(name, member, f"is a link to what is not in the archive: {member.linkname}")
        shutil.copy2(there, path)
    else:
        raise _refused(name, member, "is neither a file nor a folder nor a link")


def _check_links(target: Path, name: str) -> None:
    """Refuses the archive if a link leads out now that all is there: a member may change where another one leads."""
    root = os.path.realpath(target)
    for folder, folders, files in os.walk(target):
        for path in (Path(folder, each) for each in folders + files):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                told = f"{name} is refused: {str(path.relative_to(target))!r} is a link that leads out of the folder"
                raise UsageError(f"{told}: {path.readlink()}", "pack only the code: tar -czf FILE -C FOLDER .")


def _make_room(path: Path) -> None:
    """Removes what an earlier member of the same name has made."""
    if path.is_symlink() or path.is_file():
        path.unlink()


def _refused(name: str, member: tarfile.TarInfo, why: str) -> UsageError:
    return UsageError(f"{name} is refused: {member.name!r} {why}", "pack only the code: tar -czf FILE -C FOLDER .")


SKIPPED = (".git", "__pycache__", ".venv*", ".headrace")
Ignored = Callable[[str, bool], bool]
"""Tells of a name inside a folder of code, and whether it is that of a folder, whether it is left out."""


def copy_all(name: str, is_folder: bool) -> bool:
    """Says of nothing that it is left out."""
    return False


def nothing_ignored(folder: Path) -> Ignored:
    """Returns rules by which all that a folder of code holds is copied."""
    return copy_all


def bring_code(
    source: str,
    base: Path,
    dependencies: Sequence[str],
    target: Path,
    leave_out: Path,
    *,
    archive: bool,
    ignored_in: Callable[[Path], Ignored] = nothing_ignored,
) -> None:
    """Makes the folder of the code.

    Args:
        source: a folder, a ``.tar.gz`` file or an ``s3://`` object of that kind; empty for no code.
        base: what relative paths are relative to.
        dependencies: files and folders that come to lie in the folder too, under their own names.
        target: the new folder; its parent exists.
        leave_out: a folder that is not copied, wherever it is met.
        archive: whether the source is an archive; one of ``s3://`` always is.
        ignored_in: returns what a folder of code says is left out of it.

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
        snapshot(base / source, target, leave_out, ignored_in(base / source))
    else:
        target.mkdir()
    for dependency in dependencies:
        _add(base / dependency, target, leave_out, ignored_in)


def _add(dependency: Path, target: Path, leave_out: Path, ignored_in: Callable[[Path], Ignored]) -> None:
    name = Path(os.path.normpath(dependency)).name  # as the user calls it, also where it is a symlink
    if os.path.lexists(target / name):
        raise UsageError(
            f"dependencies: {dependency} cannot be put beside the code, which has {name!r} already",
            "rename one of them",
        )
    if dependency.is_dir():
        snapshot(dependency, target / name, leave_out, ignored_in(dependency))
    else:
        copy_file(dependency, target / name)


def code_digest(
    source: str,
    base: Path,
    dependencies: Sequence[str],
    leave_out: Path,
    *,
    archive: bool,
    ignored_in: Callable[[Path], Ignored] = nothing_ignored,
) -> str:
    """Returns what tells the content of a job's code from any other, without a copy of it; of ``s3://`` its name.

    Args:
        source, base, dependencies, leave_out, archive, ignored_in: as `bring_code` has them.

    Raises:
        UsageError, OSError: it cannot be read.
    """
    digest = hashlib.sha256(source.encode() if storage.is_s3(source) else b"")
    named = [] if storage.is_s3(source) else [storage.local_path(source, base) if archive else base / source]
    for path in (*(named if source else ()), *(base / dependency for dependency in dependencies)):
        files = entries_of(path, leave_out, ignored_in(path)) if path.is_dir() else [(Path(path.name), path, None)]
        for name, file, link in files:
            content = os.fsencode(link) if link is not None else file.read_bytes() if file.is_file() else b""
            mode = 0 if link is not None else file.stat().st_mode & 0o111
            digest.update(repr((os.fspath(name), mode, link is not None, len(content))).encode() + content)
    return digest.hexdigest()


def snapshot(source: Path, target: Path, leave_out: Path, ignored: Ignored = copy_all) -> None:
    """Copies a directory of code, so that a run keeps what it ran, and no program writes into the user's folders.

    Left out: what is ignored, version control, caches, virtual environments, the directory of all runs, and what is
    neither file nor directory nor symlink (`code_notes` says so). A symlink that leads out of the directory becomes
    what it leads to.

    Args:
        source: the user's directory.
        target: where the copy goes; it must not exist.
        leave_out: a directory that is not copied, wherever it is met.
        ignored: what else is left out.

    Raises:
        UsageError: a symlink that leads to a folder above it.
    """
    target.mkdir()
    for name, path, link in entries_of(source, leave_out, ignored):
        copy = target / name
        if link is not None:
            copy.symlink_to(link)
        elif path.is_dir():
            copy.mkdir()
        elif path.is_file():
            copy_file(path, copy)


def entries_of(
    source: Path, leave_out: Path, ignored: Ignored, above: tuple[Path, ...] = ()
) -> Iterator[tuple[Path, Path, str | None]]:
    """Yields what a directory has of code, folders before what they hold: its name, its path, and of a link its text.
    What is neither file nor folder, such as a socket, is yielded too; no copy is made of it.

    Args:
        source: the directory.
        leave_out, ignored: as `snapshot` has them.
        above: the directories, resolved, whose links have led here.
    """
    root, runs = Path(os.path.realpath(source)), os.path.realpath(leave_out)
    for folder, names, files in os.walk(source, onerror=_raise):
        here = Path(folder)
        names[:] = sorted(name for name in names if not _skipped(name) and os.path.realpath(here / name) != runs)
        left_out: set[str] = set()
        for name in names + sorted(files):
            path = here / name
            inside, mode = path.relative_to(source), path.lstat().st_mode
            if ignored(inside.as_posix(), stat.S_ISDIR(mode)):
                left_out.add(name)
            elif stat.S_ISLNK(mode):
                yield from _linked(path, inside, root, leave_out, ignored, above)
            elif stat.S_ISDIR(mode) or not _skipped(name):
                yield inside, path, None
        names[:] = [name for name in names if name not in left_out and not (here / name).is_symlink()]


def _linked(
    path: Path, inside: Path, root: Path, leave_out: Path, ignored: Ignored, above: tuple[Path, ...]
) -> Iterator[tuple[Path, Path, str | None]]:
    """Yields what is copied for a symlink: itself where it stays in the directory, or leads nowhere or where the user
    may not go, else its target."""
    link = os.readlink(path)  # noqa: PTH115  (Path.readlink is the same)
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # nothing is there, or nothing to be seen, or it leads in a circle
        yield inside, path, link
        return
    if target.is_relative_to(root):
        yield inside, path, os.path.relpath(target, os.path.realpath(path.parent)) if Path(link).is_absolute() else link
    elif target.is_dir():
        if any(folder.is_relative_to(target) for folder in (root, *above)):
            raise UsageError(
                f"{path} leads to {target}, a folder above it: the code would have no end",
                "let the link lead to what the code needs, or take it out",
            )
        yield inside, path, None
        below = lambda name, is_folder: ignored(f"{inside.as_posix()}/{name}", is_folder)  # noqa: E731
        for name, file, text in entries_of(path, leave_out, below, (*above, root)):
            yield inside / name, file, text
    else:
        yield inside, path, None


def _raise(error: OSError) -> None:
    raise error


def _skipped(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in SKIPPED)

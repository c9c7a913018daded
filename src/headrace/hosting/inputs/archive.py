"""Unpacks an archive of code, which may come from a stranger: none of its members is written outside its folder.

The rules are those of `tarfile`'s data filter, which not every Python 3.10 and 3.11 has: no absolute names, no ``..``,
no links that lead out, no devices and FIFOs, no set-user-id bits; who owned a file does not count. What breaks a rule
is refused, and with it the whole archive.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from pathlib import Path

from headrace.errors import UsageError

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

"""What leaves a host, read as the host sees it: model, output, intermediate files, checkpoints and the failure file.

A program may put a link, or anything else, wherever it may write. Who reads the tree of a host later, on this machine
and outside of the host, would find his own /tmp behind a link to /tmp. So there are two halves:

* `bring_in` runs in the host, when its programs have ended and its /tmp, /dev/shm and channels are still there: a link
  that leads out of what the host keeps becomes what it leads to.
* `walk` and `resolve` follow links inside the host's tree only, /opt/ml being that tree; what leads out of it is never
  opened. The input channels are not part of the tree: there are other things behind their names on either side.

What holds data and cannot be read is `LOST`, with the reason; a socket, a FIFO, a device, a link to one, a link within
a folder to something that is not there and a link to a folder above it hold none and are `OTHER`.

output/failure says why a job failed; SageMaker shows its first 1024 characters as the job's FailureReason. What the
user's own program wrote there wins over everything that headrace could say: headrace writes there only where the
program has not, and the agent records what it wrote.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.errors import FAILURE_CHARACTERS
from headrace.instance.files import TEMPORARY, is_temporary
from headrace.instance.paths import DEFAULT_BASE, TreePaths

FILE, FOLDER, LINK, OTHER, LOST = "file", "folder", "link", "other", "lost"
CHECKPOINT_CONFIG = "checkpointconfig.json"
MOST_LINKS = 40  # as the kernel follows
_numbers = itertools.count()


@dataclass(frozen=True)
class Entry:
    """One thing below a folder.

    Attributes:
        name: its path there, relative; empty for the folder itself.
        kind: ``file``, ``folder``, ``link``, or what cannot be stored: ``other``, ``lost``.
        path: where it really is, no link being left in it; of a link and of what cannot be stored, its own path.
        size: bytes of a file.
        target: of a link; why a thing is lost.
    """

    name: str
    kind: str
    path: Path
    size: int = 0
    target: str = ""


class LeadsOut(OSError):
    """A link leads out of what a host keeps."""

    def __init__(self, target: str) -> None:
        super().__init__(errno.EXDEV, f"it leads to {target}, which is not among what the host keeps")
        self.target = target


def resolve(base: Path, path: Path) -> Path:
    """Returns where a path of a host's tree really is on this machine.

    Args:
        base: the host's tree, which it sees as /opt/ml.
        path: below it.

    Raises:
        LeadsOut: a link leads out of the tree, or into the input channels.
        OSError: a link leads nowhere, in a circle, or through a file.
    """
    root = Path(os.path.realpath(base))
    todo = [*reversed(path.relative_to(root if path.is_relative_to(root) else base).parts)]
    real, links = root, 0
    while todo:
        name = todo.pop()
        if name == "..":
            if real == root:
                raise LeadsOut(str(PurePosixPath(DEFAULT_BASE).parent.joinpath(*reversed(todo))))
            real = real.parent
            continue
        following = real / name
        mode = following.lstat().st_mode
        if stat.S_ISLNK(mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, "its links lead in a circle")
            target = os.readlink(following)  # noqa: PTH115  (as it is written)
            if target.startswith("/"):
                real = root
                todo += reversed(_inside(base, root, target))
            else:
                todo += reversed(PurePosixPath(target).parts)
            continue
        if todo and not stat.S_ISDIR(mode):
            raise OSError(errno.ENOTDIR, f"it leads through {_seen(root, following)}, which is no folder")
        if following == root / "input":
            raise LeadsOut(str(_seen(root, following).joinpath(*reversed(todo))))
        real = following
    return real


def _inside(base: Path, root: Path, target: str) -> tuple[str, ...]:
    """Returns the parts of an absolute path below the host's tree. Raises LeadsOut."""
    path = PurePosixPath("/", target.lstrip("/"))
    for tree in (PurePosixPath(DEFAULT_BASE), base, root):
        if path.is_relative_to(tree):
            return path.relative_to(tree).parts
    raise LeadsOut(target)


def _seen(root: Path, path: Path) -> PurePosixPath:
    return PurePosixPath(DEFAULT_BASE) / path.relative_to(root)


def walk(base: Path, folder: Path, *, links: bool) -> Iterator[Entry]:
    """Yields what is below a folder of a host: folders before what is in them, in the order of names.

    A program may still run: what goes meanwhile is left out.

    Args:
        base: the host's tree.
        folder: the folder; nothing is below one that does not exist.
        links: a link that stays in the folder is yielded as one; else every link is what it leads to.
    """
    if not os.path.lexists(folder):
        return
    try:
        real = resolve(base, folder)
        if not real.is_dir():
            raise OSError(errno.ENOTDIR, "it is no folder")
    except OSError as error:
        yield Entry("", LOST, folder, target=error.strerror or str(error))
        return
    yield from _below(base, real, "", links, real, ())


def _below(
    base: Path, folder: Path, below: str, links: bool, top: Path, above: tuple[tuple[int, int], ...]
) -> Iterator[Entry]:
    try:
        status = folder.stat()
        names = sorted(os.listdir(folder))  # noqa: PTH208
    except FileNotFoundError:
        return
    except OSError as error:
        yield Entry(below.rstrip("/"), LOST, folder, target=error.strerror or str(error))
        return
    inner = (*above, (status.st_dev, status.st_ino))
    for child in names:
        if is_temporary(child):
            continue
        path, name = folder / child, below + child
        try:
            entry = _entry(base, path, name, links, top)
            if entry.kind == FOLDER:
                status = entry.path.stat()
                if (status.st_dev, status.st_ino) in inner:  # it would never end
                    entry = Entry(name, OTHER, path)
        except FileNotFoundError:
            if path.is_symlink():
                yield _broken(path, name)
            continue
        except OSError as error:
            kind = OTHER if isinstance(error, LeadsOut) and _is_device(error.target) else LOST
            yield Entry(name, kind, path, target=error.strerror or str(error))
            continue
        yield entry
        if entry.kind == FOLDER:
            yield from _below(base, entry.path, f"{name}/", links, top, inner)


def _entry(base: Path, path: Path, name: str, links: bool, top: Path) -> Entry:
    status = path.lstat()
    real = path
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(path)  # noqa: PTH115
        if links and _stays(base, path, name, target, top):
            return Entry(name, LINK, path, target=target)
        real = resolve(base, path)
        status = real.lstat()
    if stat.S_ISDIR(status.st_mode):
        return Entry(name, FOLDER, real)
    if not stat.S_ISREG(status.st_mode):
        return Entry(name, OTHER, path)
    if not os.access(real, os.R_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return Entry(name, FILE, real, size=status.st_size)


def _stays(base: Path, path: Path, name: str, target: str, top: Path) -> bool:
    """Whether a link leads to a place below its folder by how it is written, and no link on the way changes that."""
    if not _is_written_inside(name, target):
        return False
    parts = PurePosixPath(target).parts
    climbs = any(part == ".." and before != ".." for before, part in itertools.pairwise(parts))
    if not climbs:
        return True
    with contextlib.suppress(OSError):
        return resolve(base, path).is_relative_to(top)
    return True


def _is_written_inside(name: str, target: str) -> bool:
    if target.startswith("/"):
        return False
    depth = len(PurePosixPath(name).parts) - 1
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def _broken(path: Path, name: str) -> Entry:
    """A link to what is not there: what it led to may be lost when it leads out of its folder."""
    target = os.readlink(path)  # noqa: PTH115
    if not _is_written_inside(name, target):
        return Entry(name, LOST, path, target=f"it leads to {target}, which is not there")
    return Entry(name, OTHER, path)


def _is_device(target: str) -> bool:
    path = PurePosixPath(target)
    return path.is_relative_to("/proc") or (path.is_relative_to("/dev") and not path.is_relative_to("/dev/shm"))


# --- in the host -----------------------------------------------------------------------------------------------------


def link_kept(base: Path, host: str, places: Iterable[str]) -> list[str]:
    """Links to places that the job wants to keep, from its output data: `output/data/<host>/<place>`.

    Args:
        base: the host's tree, as the host sees it.
        host: its name.
        places: absolute paths on the host, or paths relative to its working directory. What is not there is passed.

    Returns:
        What cannot be linked to, with the reason.
    """
    tree, troubles = TreePaths(base), []
    for place in places:
        source, link = tree.code / place, tree.output_data / host / place.lstrip("/")
        if not os.path.exists(source):
            continue
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
        except OSError as error:
            troubles.append(f"{place}: {error.strerror or error}")
    return troubles


def bring_in(base: Path, cancelled: Callable[[], bool], sent: Path | None = None) -> list[str]:
    """Puts in the place of each link that leads out of what this host keeps what it leads to.

    Args:
        base: the host's tree, as the host sees it.
        sent: the code as it was sent, where hosts share it; what a host has not changed of it is not in its tree.
        cancelled: asked before each file; when it says yes the rest stays as it is.

    Returns:
        What stays as it is, with the reason.
    """
    tree = TreePaths(base)
    places = [tree.model, tree.output_data, tree.output_intermediate, tree.checkpoints, tree.failure]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        config = json.loads((tree.input_config / CHECKPOINT_CONFIG).read_bytes())
        places.append(Path(config["LocalPath"]))
    bringing = _Bringing(base, cancelled, sent)
    for place in places:
        if place.is_relative_to(base):
            bringing.look_at(place)
    return bringing.troubles


class _Bringing:
    def __init__(self, base: Path, cancelled: Callable[[], bool], sent: Path | None) -> None:
        self.troubles: list[str] = []
        self._base = base
        self._cancelled = cancelled
        self._code = Path(os.path.realpath(TreePaths(base).code))
        self._sent = sent
        self._looked_at: set[Path] = set()

    def look_at(self, path: Path) -> None:
        if path.is_symlink():
            try:
                real = resolve(self._base, path)
                if self._is_sent(real):
                    raise LeadsOut(str(real))
            except LeadsOut:
                try:
                    self._replace(path)
                except OSError as error:
                    self.troubles.append(f"{path}: {error.strerror or error}")
            except OSError:
                return  # it leads nowhere
            else:
                if self._sent is not None and real.is_relative_to(self._code) and real not in self._looked_at:
                    self._looked_at.add(real)
                    self.look_at(real)
        elif path.is_dir():
            with contextlib.suppress(OSError):  # who reads it later will say so
                for name in sorted(os.listdir(path)):  # noqa: PTH208
                    self.look_at(path / name)

    def _is_sent(self, real: Path) -> bool:
        """Whether a path is that of something that was sent: of a folder, the tree may lack what is in it."""
        if self._sent is None or not real.is_relative_to(self._code):
            return False
        return os.path.lexists(self._sent / real.relative_to(self._code))

    def _replace(self, link: Path) -> None:
        copy = link.parent / f"{TEMPORARY}in-{os.getpid()}-{next(_numbers)}"
        try:
            self._copy(self._end_of(link), copy, ())
            if copy.is_dir():
                link.unlink()
            copy.rename(link)
        except BaseException:
            if copy.is_dir():
                shutil.rmtree(copy, ignore_errors=True)
            else:
                copy.unlink(missing_ok=True)
            raise

    def _end_of(self, link: Path) -> Path:
        """Where a link leads to, /opt/ml being this host's own also where it lies elsewhere."""
        target = PurePosixPath(os.readlink(link))  # noqa: PTH115
        own = target.is_relative_to(DEFAULT_BASE)
        place = self._base / target.relative_to(DEFAULT_BASE) if own else link
        return Path(os.path.realpath(place, strict=True))

    def _copy(self, source: Path, copy: Path, above: tuple[Path, ...]) -> None:
        if self._cancelled():
            raise OSError(errno.ECANCELED, "there was no time to copy what it leads to")
        mode = source.stat().st_mode
        if stat.S_ISREG(mode):
            shutil.copy2(source, copy)
        elif not stat.S_ISDIR(mode):
            raise OSError(errno.EINVAL, f"it leads to {source}, which is neither a file nor a folder")
        else:
            copy.mkdir(mode=0o700)
            for name in os.listdir(source):  # noqa: PTH208
                self._copy_entry(source / name, copy / name, (*above, source))
            shutil.copystat(source, copy)

    def _copy_entry(self, path: Path, copy: Path, above: tuple[Path, ...]) -> None:
        mode = path.lstat().st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.mkfifo(copy)  # it holds no data, and is reported as one that does not
        elif not stat.S_ISLNK(mode):
            self._copy(path, copy, above)
        else:
            try:
                real = Path(os.path.realpath(path, strict=True))
            except OSError:  # it leads nowhere, here as there
                copy.symlink_to(path.readlink())
                return
            if real.is_relative_to(above[0]):
                copy.symlink_to(os.path.relpath(real, os.path.realpath(path.parent)))
            elif real in above or any(folder.is_relative_to(real) for folder in above):
                raise OSError(errno.ELOOP, f"{path} leads to a folder above it")
            else:
                self._copy(real, copy, (*above, real) if real.is_dir() else above)


# --- why a job failed ------------------------------------------------------------------------------------------------


def write_failure(base: str | os.PathLike[str], text: str) -> str:
    """Writes output/failure, unless there is one.

    Args:
        base: base directory of the instance.
        text: why; the first 1024 characters are written.

    Returns:
        What was written, as `read_failure` reads it; empty if there was one.
    """
    path = TreePaths(base).failure
    path.parent.mkdir(parents=True, exist_ok=True)
    written = text.encode(errors="backslashreplace").decode()[:FAILURE_CHARACTERS]
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(written)
    except FileExistsError:
        return ""
    return written


def read_failure(base: str | os.PathLike[str]) -> str:
    """Returns the first 1024 characters of output/failure, empty when there is none."""
    try:
        path = resolve(Path(base), TreePaths(base).failure)
        if not path.is_file():  # opening a FIFO would wait
            return ""
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return file.read(FAILURE_CHARACTERS)
    except OSError:
        return ""

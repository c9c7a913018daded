"""What an engine tells people: what works in it, what it submits, what it logs; and documents written into a folder,
where nothing of anybody else is overwritten.

A document holds no secret. Standard library only, as `headrace.engines` is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.runs import RunPaths


class Capability(NamedTuple):
    """One thing that an engine does for jobs, where what it needs is there.

    Attributes:
        name: what it is, e.g. ``mpi``.
        works: whether it works here.
        detail: what was found, or why it does not work.
        hint: what to install or to do, when it does not work.
        needed: whether no job can run without it.
    """

    name: str
    works: bool
    detail: str
    hint: str = ""
    needed: bool = False


class Document(NamedTuple):
    """One document that an engine submits or starts.

    Attributes:
        name: file name, or a relative path with ``/``, e.g. ``job.sbatch``; unique among the documents of a job.
        text: all of it.
    """

    name: str
    text: str


MOST = 4 << 20  # bytes of one log that are read


def log_documents(paths: RunPaths) -> tuple[Document, ...]:
    """Returns what supervisors, agents and tools of a run have written about their own work: ``engine/*.log`` of its
    directory, by name, without empty ones.

    Of a log of more than `MOST` bytes the end is returned, with a line before it that says so. What is no UTF-8 stands
    as U+FFFD.

    Raises:
        OSError: one cannot be read.
    """
    files = [file for file in sorted(paths.engine.glob("*.log")) if file.lstat().st_size]
    return tuple(Document(f"{paths.engine.name}/{file.name}", _text(file)) for file in files)


def _text(file: Path) -> str:
    from headrace.record_files import open_record

    with os.fdopen(open_record(file), "rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - MOST))
        text = opened.read(MOST).decode(errors="replace")
    return text if size <= MOST else f"(the last {MOST} of {size} bytes)\n{text}"


def write_documents(documents: Sequence[Document], folder: Path) -> list[Path]:
    """Writes documents into a folder, which is made when it is not there.

    A file that is there already is kept: when it holds another text, nothing is written at all.

    Args:
        documents: what to write.
        folder: where.

    Returns:
        The files, in the order of the documents.

    Raises:
        UsageError: a file is in the way, or the folder cannot be written.
        ValueError: the name of a document leads out of the folder, or stands twice.
    """
    files = [folder / _inside(document.name) for document in documents]
    if len(set(files)) < len(files):
        raise ValueError(f"two documents have one name: {[document.name for document in documents]}")
    written: list[Path] = []
    try:
        missing = [
            (file, document.text)
            for file, document in zip(files, documents, strict=True)
            if not _is_there(file, document.text)
        ]
        for file, text in missing:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8", newline="") as out:
                written.append(file)
                out.write(text)
    except BaseException as error:  # Ctrl-C too: half a document would be in the way of the next call
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        if not isinstance(error, OSError):
            raise
        where = error.filename or folder
        raise UsageError(f"{where} cannot be written: {error.strerror or error}", hint="name another folder") from error
    return files


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or path == PurePosixPath("."):
        raise ValueError(f"{name!r} is no name of a document")
    return path


def _is_there(file: Path, text: str) -> bool:
    """Tells whether a file with this text is there. Raises UsageError when another one is, OSError."""
    if not os.path.lexists(file):
        return False
    if file.is_file() and file.read_bytes() == text.encode():
        return True
    raise UsageError(f"{file} is there already, and is not what would be written", hint="name a folder without it")


@dataclass(frozen=True)
class Upload:
    """What is stored somewhere before the job is submitted.

    Attributes:
        what: what it is, in words.
        to: the place.
    """

    what: str
    to: str


@dataclass(frozen=True)
class Permission:
    """What one party must be allowed.

    Attributes:
        actions: names of actions.
        resources: on which.
        why: what for, in a few words.
        optional: most runs do without; only what `why` names fails without it.
        service: the platform itself acts on it, under the role; no program of headrace does.
    """

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    why: str
    optional: bool = False
    service: bool = False


@dataclass(frozen=True)
class Submission:
    """What an engine sends to a platform for a job: `headrace plan` shows the `submission` of a planned job with one.

    Attributes:
        operation: what is asked of the platform.
        region: where.
        request: what is sent, whole.
        uploads: what is stored before.
        permissions: what must be allowed, by party.
    """

    operation: str
    region: str
    request: dict[str, object]
    uploads: tuple[Upload, ...]
    permissions: dict[str, tuple[Permission, ...]]

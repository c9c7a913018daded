"""What an engine submits, as documents; and writing them into a folder, where nothing of anybody else is overwritten.

A document holds no secret. Standard library only, as `headrace.engines` is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from headrace.errors import UsageError


class Document(NamedTuple):
    """One document that an engine submits or starts.

    Attributes:
        name: file name, or a relative path with ``/``, e.g. ``job.sbatch``; unique among the documents of a job.
        text: all of it.
    """

    name: str
    text: str


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

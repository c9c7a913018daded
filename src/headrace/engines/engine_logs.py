"""What supervisors, agents and tools of a run have written about their own work, as documents: `engine/*.log` of its
directory. What the programs of the job print is in the run's logs, not here."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.engines.documents import Document
from headrace.record_files import open_record
from headrace.runs import RunPaths

MOST = 4 << 20  # bytes of one log that are read


def log_documents(paths: RunPaths) -> tuple[Document, ...]:
    """Returns the logs that lie in a run's directory, by name, without empty ones.

    Of a log of more than `MOST` bytes the end is returned, with a line before it that says so. What is no UTF-8 stands
    as U+FFFD.

    Raises:
        OSError: one cannot be read.
    """
    files = [file for file in sorted(paths.engine.glob("*.log")) if file.lstat().st_size]
    return tuple(Document(f"{paths.engine.name}/{file.name}", _text(file)) for file in files)


def _text(file: Path) -> str:
    with os.fdopen(open_record(file), "rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - MOST))
        text = opened.read(MOST).decode(errors="replace")
    return text if size <= MOST else f"(the last {MOST} of {size} bytes)\n{text}"

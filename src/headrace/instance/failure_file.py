"""output/failure: why a job failed, in words.

SageMaker shows the first 1024 characters of this file as the job's FailureReason. What the user's own program wrote
there wins over everything that headrace could say. headrace writes there only where the program has not, and the agent
records what it wrote: the program may still replace it. (The toolkit also writes an empty output/success; nothing reads
it, so headrace does not: success is the exit code.)
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import FAILURE_CHARACTERS
from headrace.instance.kept_files import resolve
from headrace.instance.paths import TreePaths


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

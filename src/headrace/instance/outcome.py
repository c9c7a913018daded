"""output/failure: why a job failed, in words.

SageMaker shows the first 1024 characters of this file as the job's FailureReason. What the user's own program wrote
there wins over everything that headrace could say. headrace writes there only where the program has not, and the agent
records that it did. (The toolkit also writes an empty output/success; nothing reads it, so headrace
does not: success is the exit code.)
"""

from __future__ import annotations

import os

from headrace.errors import FAILURE_CHARACTERS
from headrace.instance.paths import TreePaths


def write_failure(base: str | os.PathLike[str], text: str) -> bool:
    """Writes output/failure, unless there is one.

    Args:
        base: base directory of the instance.
        text: why; the first 1024 characters are written.

    Returns:
        Whether it was written.
    """
    path = TreePaths(base).failure
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text[:FAILURE_CHARACTERS])
    except FileExistsError:
        return False
    return True


def read_failure(base: str | os.PathLike[str]) -> str:
    """Returns the first 1024 characters of output/failure, empty when there is none."""
    path = TreePaths(base).failure
    try:
        if not path.is_file():  # opening a FIFO would wait
            return ""
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return file.read(FAILURE_CHARACTERS)
    except OSError:
        return ""

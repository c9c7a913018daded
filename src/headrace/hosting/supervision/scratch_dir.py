"""Where the temporary files of a run's programs go: one directory in the machine's own, short enough for sockets in it.

A program that was killed cannot remove its temporary files. The agent of a host removes those of the host, the
supervisor removes the rest. When they were all killed together, the next start of any run does.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path


def scratch_dir(run_id: str) -> Path:
    """Returns the directory; it need not exist."""
    return Path(tempfile.gettempdir()) / f"headrace-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"


def remove_scratch(run_id: str) -> None:
    """Removes the directory with all that is in it."""
    shutil.rmtree(scratch_dir(run_id), ignore_errors=True)

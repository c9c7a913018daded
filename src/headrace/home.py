"""Where headrace keeps what is its user's: runs, prices, environments. Every room may import this module."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import UsageError

HOME_VARIABLE = "HEADRACE_HOME"


def home_dir() -> Path:
    """Returns $HEADRACE_HOME, by default ~/.headrace.

    Raises:
        UsageError: the user has no home folder, as in a container whose user is a number only.
    """
    if home := os.environ.get(HOME_VARIABLE):
        return Path(home)
    try:
        return Path.home() / ".headrace"
    except RuntimeError as error:
        what = f"there is no home folder: HOME is not set, and /etc/passwd does not know user {os.getuid()}"
        raise UsageError(what, f"set {HOME_VARIABLE} to a folder that you may write to") from error

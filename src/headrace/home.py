"""Where headrace keeps what is its user's: runs, prices, environments. Every room may import this module."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import UsageError
from headrace.private_folders import check_way

HOME_VARIABLE = "HEADRACE_HOME"
RUNS = "runs"
"""The directory of all runs of a home."""


def home_dir() -> Path:
    """Returns $HEADRACE_HOME, by default ~/.headrace.

    Raises:
        UsageError: the user has no home folder, as in a container whose user is a number only; or another user has put
            it into a place where everybody may write.
    """
    hint = f"set {HOME_VARIABLE} to a folder that you may write to"
    try:
        home = Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".headrace")
        check_way(home)
    except RuntimeError as error:
        what = f"there is no home folder: HOME is not set, and /etc/passwd does not know user {os.getuid()}"
        raise UsageError(what, hint) from error
    except PermissionError as error:
        raise UsageError(f"headrace keeps nothing in {home}: {error}", hint) from error
    return home

"""Where headrace keeps what is its user's: runs, prices, environments. Every room may import this module."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import UsageError
from headrace.private_folders import check_way

HOME_VARIABLE = "HEADRACE_HOME"
RUNS = "runs"
"""The directory of all runs of a home."""
GRIDS = "grids"
"""The directory of all grids of a home."""


def home_dir() -> Path:
    """Returns $HEADRACE_HOME, by default ~/.headrace.

    Raises:
        UsageError: the user has no home folder, as in a container whose user is a number only; or another user has put
            it into a place where everybody may write; or it is no folder that this user may enter.
    """
    hint = f"set {HOME_VARIABLE} to a folder that you may write to"
    try:
        home = Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".headrace")
        check_way(home)
        _enter(home)
    except RuntimeError as error:
        what = f"there is no home folder: HOME is not set, and /etc/passwd does not know user {os.getuid()}"
        raise UsageError(what, hint) from error
    except (PermissionError, NotADirectoryError) as error:
        raise UsageError(f"headrace keeps nothing in {home}: {error.strerror or error}", hint) from error
    return home


def settings_file() -> Path:
    """Returns the file of a user's settings, which need not be there. Raises UsageError."""
    return home_dir() / "settings.yaml"


def _enter(folder: Path) -> None:
    """Raises PermissionError or NotADirectoryError: it is there, and is no folder that this user may enter."""
    try:
        os.stat(f"{folder}/.")  # noqa: PTH116  (Path drops the point, by which the folder itself is entered)
    except (PermissionError, NotADirectoryError):
        raise
    except OSError:  # it is missing, or can be nobody's folder: who keeps something there makes it, or is told
        pass

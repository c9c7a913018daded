"""What of a run's files is not there at all, and what that means for those who read its figures."""

from __future__ import annotations

import errno

from headrace.runs import Damage, RunPaths, RunState

_FOLDERS = {
    "events": "when it started, what happened, how it ended and what it cost are not known",
    "metrics": "there are no figures of its steps and hosts",
    "logs": "there are no lines of its programs",
}
_WORDS = {
    errno.ENOENT: "the file is missing",
    errno.EISDIR: "there is a folder in its place",
    errno.ENOTDIR: "a part of its path is a file",
    errno.EACCES: "this user may not read it",
}


def absent(paths: RunPaths, state: RunState) -> list[Damage]:
    """Returns the folders that a run has lost: those that a run with programs always has.

    A run without events may have had programs, too; one that goes on may not have written anything yet.

    Args:
        paths: the run's directory.
        state: what its events say.
    """
    if not state.finished or not paths.root.is_dir():
        return []
    gone = [name for name in _FOLDERS if not (paths.root / name).is_dir()]
    if "events" not in gone and not state.programs:
        return []
    return [Damage(str(paths.root / name), 0, f"the folder is missing: {_FOLDERS[name]}") for name in gone]


def why_unread(error: Exception) -> str:
    """Returns in words why a file cannot be read: an OSError, or a decoder's words for what is in it."""
    if isinstance(error, OSError):
        return _WORDS.get(error.errno or 0, error.strerror or str(error))
    return f"it holds no complete record ({error})"

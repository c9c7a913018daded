"""The folder between the command line and the probe: what to measure, and one file of JSON lines a process.

`trial.json` in the folder holds the `Spec`. Every record is one line, written at once with O_APPEND, and has a `kind`;
`headrace.insight.doctor.probe_records` reads them. The file `over` says that the trial has ended:
nothing is written after it.

A record that cannot be written is dropped: the script must not fail because of it.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

FOLDER_VARIABLE = "HEADRACE_TRIAL"


class Spec(NamedTuple):
    """What to measure.

    Attributes:
        steps: steps to measure, and steps to replay.
        warmup: steps before, which do not count.
        cache_bytes: limit of the batches that are kept for the replay.
        full: let the script go on after the trial.
        parent: pid of the command line; when it is gone the trial is over.
    """

    steps: int
    warmup: int
    cache_bytes: int
    full: bool
    parent: int


class Spool:
    """The folder, seen from one process.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._owner = 0
        self._path = ""

    def spec(self) -> Spec:
        """Reads what to measure. Raises OSError when the folder is gone."""
        with open(os.path.join(self.folder, "trial.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            return Spec(**json.load(file))

    @property
    def over(self) -> bool:
        """Whether the trial has ended, in whichever process."""
        return os.path.exists(os.path.join(self.folder, "over"))  # noqa: PTH118  (called for every batch)

    def write(self, kind: str, **fields: object) -> None:
        """Appends one record."""
        if self._owner != os.getpid():  # a forked child has a file of its own
            self._owner = os.getpid()
            self._path = os.path.join(self.folder, f"{self._owner}-{os.urandom(4).hex()}.jsonl")  # noqa: PTH118
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, json.dumps({"kind": kind, "pid": self._owner, **fields}).encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError:
            return

    def end(self) -> None:
        """Says that the trial has ended."""
        try:
            os.close(os.open(os.path.join(self.folder, "over"), os.O_WRONLY | os.O_CREAT, 0o600))  # noqa: PTH118
        except OSError:
            return

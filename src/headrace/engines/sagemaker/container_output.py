"""What the programs of a host print, as the container's own output: CloudWatch has it, and the service finds the job's
metrics in it, as if the container were the program."""

from __future__ import annotations

import sys
import threading

from headrace.runs import LogFollower, RunPaths, Selector
from headrace.runs.run_paths import AGENT

SECONDS = 0.5  # between two looks


class ContainerOutput:
    """Prints the new lines of a host's programs until it is closed. What it cannot print does not end the host.

    Args:
        paths: the run's directory on this host.
        host: name of the host.
    """

    def __init__(self, paths: RunPaths, host: str) -> None:
        self._follower = LogFollower(paths, Selector(host=host), lambda _: None)
        for _ in self._follower.poll(final=True):  # an earlier container has printed them
            pass
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Prints what is left. Call it when nothing writes any more."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(SECONDS):
            self._print(final=False)
        self._print(final=True)

    def _print(self, final: bool) -> None:
        for line in self._follower.poll(final):
            if line.stream.name != AGENT:
                print(line.text, file=sys.stderr if line.kind == "e" else sys.stdout, flush=True)

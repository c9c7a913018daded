"""Which worker goes on with which lane.

A lane stays with one worker, whose reader stands where the next outputs are asked for. When that worker is gone, the
lane goes to the one with the fewest; but no worker takes more than its share of the lanes, so that one that is started
again gets its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from headrace.feed.client.work_units import WorkerLoad
from headrace.feed.identifiers import WorkerNumber


class LaneHomes:
    """See the module."""

    def __init__(self) -> None:
        self._homes: dict[int, WorkerNumber] = {}
        self.executors = 1  # of all workers, those included that will be started

    def able(self, lane: int, workers: Mapping[WorkerNumber, WorkerLoad]) -> dict[WorkerNumber, WorkerLoad]:
        """Returns who may be asked for a lane: its worker, or those that have the fewest lanes and may take more."""
        home = self._homes.get(lane)
        if home is not None and home in workers:
            return {home: workers[home]}
        held = Counter(number for number in self._homes.values() if number in workers)
        lanes = len(self._homes.keys() | {lane})
        share = max(1, math.ceil(lanes / max(1, self.executors)))
        shares = {
            number: held[number] / worker.executors
            for number, worker in workers.items()
            if held[number] < share * worker.executors
        }
        least = min(shares.values(), default=0.0)
        return {number: workers[number] for number, has in shares.items() if has == least}

    def settle(self, lane: int, worker: WorkerNumber) -> None:
        """A worker was asked for a lane: it goes on with it."""
        self._homes[lane] = worker

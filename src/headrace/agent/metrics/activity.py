"""When a host last worked: used CPU or a GPU, or sent data to a trainer.

It distinguishes a stalled job from one that only prints nothing: a trainer that waits for data, and data workers
without requests, use next to no CPU (measured with TensorFlow 2.21: 1 to 3 % of a core). A loop of small steps
uses no more than that, but its data workers send; one that computes for a minute without asking for data uses its cores
or its GPU. The agent's own CPU time is left out: that of a large job's coordinator has much to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.runs.metric_records import HostSecond

BUSY_CORES = 0.1
"""A host works whose processes, without its agent, use this many cores or more."""


class Activity:
    """What one host did last.

    Args:
        clock: seconds.
        own: CPU seconds of this process, the agent.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, own: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._own = own
        self._own_before = 0.0
        self._worked = self._handed = clock()
        self._before: HostSecond | None = None
        self._sent: dict[str, int] = {}

    def used(self, second: HostSecond) -> None:
        """Takes in what the host used so far."""
        before, self._before = self._before, second
        own_before, self._own_before = self._own_before, self._own()
        if before is None or second.t <= before.t:
            return
        cores = (second.cpu - before.cpu - (self._own_before - own_before)) / (second.t - before.t)
        if cores >= BUSY_CORES or any(gpu.use for gpu in second.gpus):
            self._worked = self._clock()

    def sent(self, stream: str, total: int) -> None:
        """Takes in how many bytes a server of the host has sent to trainers since its start."""
        before, self._sent[stream] = self._sent.get(stream, 0), total
        if total > before:
            self._handed = self._clock()

    def idle(self) -> float:
        """Returns for how many seconds the host has not worked."""
        return self._clock() - self._worked

    def unsent(self) -> float:
        """Returns for how many seconds no server of it has sent anything."""
        return self._clock() - self._handed

"""What to do about workers that compute with other libraries or instruction sets: a pure state machine.

``warn``: use them and say so once. ``refuse``: use only those that compute like the first one. ``lowest``: wait until
every host has opened the pipeline, use the lowest instruction set among them on all, and refuse what differs
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.feed.identifiers import WorkerNumber
from headrace.feed.pipelines.fingerprint import differences, kind_of

NumericsPolicy = Literal["warn", "refuse", "lowest"]
ORDER = ("DEFAULT", "AVX2", "AVX512")  # of torch's CPU capabilities on x86-64, from the lowest
SETTLE_SECONDS = 5.0  # that hosts which have not answered are waited for under `lowest`


class Admission(NamedTuple):
    """What becomes of a worker that has opened the pipeline: used (`ready`), left out (`refused`), or opened again with
    another instruction set (`reopen`). None of these: it waits for the others."""

    ready: bool = False
    refused: bool = False
    reopen: str = ""
    warning: str = ""


@dataclass
class _Seen:
    name: str
    numerics: dict[str, str]
    ready: bool = False


class Numerics:
    """See the module.

    Args:
        policy: see the module.
    """

    def __init__(self, policy: NumericsPolicy) -> None:
        self._policy = policy
        self._reference: dict[str, str] | None = None
        self._seen: dict[WorkerNumber, _Seen] = {}
        self._warned = False
        self._since: float | None = None
        self.kinds: dict[WorkerNumber, bytes] = {}

    def opened(self, number: WorkerNumber, name: str, numerics: dict[str, str], now: float) -> Admission:
        """A worker has opened the pipeline, and sent how it computes."""
        self._seen[number] = _Seen(name, numerics)
        self.kinds[number] = kind_of(numerics)
        if self._policy == "lowest" and self._reference is None:
            self._since = now if self._since is None else self._since
            return Admission()
        return self._judge(number)

    def gone(self, number: WorkerNumber) -> None:
        """A worker is gone."""
        self._seen.pop(number, None)
        self.kinds.pop(number, None)

    def _judge(self, number: WorkerNumber) -> Admission:
        seen = self._seen[number]
        if self._reference is None:
            self._reference = dict(seen.numerics)
        different = differences(self._reference, seen.numerics)
        if not different:
            return Admission(ready=True)
        if self._policy == "warn":
            first, self._warned = not self._warned, True
            text = f"workers compute with different libraries or CPUs, batches may differ in the last bits: {different}"
            return Admission(ready=True, warning=text if first else "")
        if self._policy == "lowest":
            lowered = seen.numerics | {"cpu_capability": self._reference.get("cpu_capability", "")}
            if not differences(self._reference, lowered) and _rank(lowered) < _rank(seen.numerics):
                return Admission(reopen=self._reference["cpu_capability"])
        text = f"{seen.name} is not used, it computes with other libraries or another CPU: {different}"
        return Admission(refused=True, warning=text)

    def settle(self, now: float, expected: int) -> list[tuple[WorkerNumber, Admission]]:
        """Under `lowest`: decides, once all have opened the pipeline, or some do not come.

        Args:
            now: monotonic seconds.
            expected: hosts that may still come, those that have included.

        Returns:
            What becomes of each worker.
        """
        if self._policy != "lowest" or self._reference is not None or self._since is None:
            return []
        if len(self._seen) < expected and now - self._since < SETTLE_SECONDS:
            return []
        lowest = min(self._seen.values(), key=lambda seen: _rank(seen.numerics))
        self._reference = dict(lowest.numerics)
        return [(number, self._judge(number)) for number in self._seen]


def _rank(numerics: dict[str, str]) -> int:
    capability = numerics.get("cpu_capability", "")
    return ORDER.index(capability) if capability in ORDER else len(ORDER)

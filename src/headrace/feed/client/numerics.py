"""What to do about workers that compute with other libraries or instruction sets: a pure state machine.

``warn``: use them and say so once. ``refuse``: use only those that compute like the first one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from headrace.feed.pipelines.fingerprint import differences

NumericsPolicy = Literal["warn", "refuse"]


class Admission(NamedTuple):
    """What becomes of a worker that has opened the pipeline: it is used, or not; and what the user is warned of."""

    used: bool
    warning: str = ""


class Numerics:
    """See the module.

    Args:
        policy: see the module.
    """

    def __init__(self, policy: NumericsPolicy) -> None:
        self._policy = policy
        self._reference: dict[str, str] | None = None
        self._warned = False

    def opened(self, name: str, numerics: dict[str, str]) -> Admission:
        """A worker has opened the pipeline, and sent how it computes."""
        if self._reference is None:
            self._reference = dict(numerics)
        different = differences(self._reference, numerics)
        if not different:
            return Admission(used=True)
        if self._policy == "refuse":
            text = f"{name} is not used, it computes with other libraries or another CPU: {different}"
            return Admission(used=False, warning=text)
        first, self._warned = not self._warned, True
        text = f"workers compute with different libraries or CPUs, batches may differ in the last bits: {different}"
        return Admission(used=True, warning=text if first else "")

"""`feed.Auto`: that a loader chooses the number of its workers itself, and what it may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, SupportsIndex

from headrace.control_group import usable_cores
from headrace.feed.tuning.executor_rule import MOST_A_CORE


@dataclass(frozen=True)
class Auto:
    """``num_workers="auto"``, with limits.

    Attributes:
        at_most: workers; None for what the machine can use.
        memory: bytes that the workers and the batches on their way may take together; None for what the control group,
            or the machine, has.

    Raises:
        ValueError: a limit that is not positive.
    """

    at_most: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("at_most", self.at_most), ("memory", self.memory)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"feed.Auto: {name} must be an integer of at least 1, got {value!r}")

    @property
    def most(self) -> int:
        """Workers that there will ever be, as `get_worker_info().num_workers` says in them."""
        most = MOST_A_CORE * usable_cores()
        return most if self.at_most is None else min(most, self.at_most)


def asked_workers(num_workers: int | Auto | Literal["auto"]) -> tuple[int, Auto | None]:
    """Returns the number of local workers, the most of them where it is tuned; and the limits then, None for a number.

    Raises:
        ValueError: a text other than ``"auto"``, or something that is no number.
    """
    if isinstance(num_workers, str) and num_workers == "auto":
        num_workers = Auto()
    if not isinstance(num_workers, (SupportsIndex, Auto)):
        raise ValueError(f'num_workers must be an integer, "auto" or a feed.Auto, got {num_workers!r}')
    return (num_workers.most, num_workers) if isinstance(num_workers, Auto) else (num_workers, None)

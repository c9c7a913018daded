"""What the caller of the coordinator's state machine is to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.runs.events import Event


@dataclass
class Effects:
    """What follows from one event.

    Attributes:
        records: events of the job, in order.
        wake: hosts whose orders have changed.
    """

    records: list[Event] = field(default_factory=list)
    wake: set[str] = field(default_factory=set)

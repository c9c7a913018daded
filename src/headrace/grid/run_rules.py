"""What a user says about running a grid: how much at once, what is tried again, what it may cost."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.grid.placement.placement_rules import Number
from headrace.job.model.field_types import AsList, AsMapping, Region, whole
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import broken

LONGEST_DELAY = 600.0
"""Seconds: pauses between attempts double up to here."""
Count = Annotated[int, BeforeValidator(whole(1))]
Again = Annotated[int, BeforeValidator(whole(0, 100))]


class RetryCause(str, Enum):
    """Why an attempt failed, of the causes that another attempt may help against."""

    CAPACITY = "CapacityError"
    """There were no instances, or a quota was used up."""
    SPOT = "SpotInterruption"
    """The instances were taken back."""
    THROTTLED = "Throttling"
    """The platform did not answer, or asked for fewer requests."""
    INTERNAL = "InternalServerError"
    """A machine, an agent or the platform itself failed, not the user's program."""


class Limits(Part):
    """How much happens at once.

    Attributes:
        parallel: lines that run at once; None for all.
        per_region: the same in a region.
        starts_per_second: starts in a region, on average; a platform that asks for fewer gets fewer.
        local_hosts: hosts of lines that run at once on this machine; None for as many as it has CPUs. One line always
            runs, however many it has.
    """

    parallel: Count | None = None
    per_region: Annotated[dict[Region, Count], AsMapping] = Field(default_factory=dict)
    starts_per_second: Number = 2.0
    local_hosts: Count | None = None

    @model_validator(mode="after")
    def _some_starts(self) -> Limits:
        if not self.starts_per_second:
            raise broken("starts_per_second must be above 0", seen="0")
        return self


class Retry(Part):
    """What is tried again.

    Attributes:
        attempts: how often a line is tried again.
        on: after which failures.
        delay: seconds before the same region is tried again; they double each time, to ten minutes at most.
        elsewhere: without capacity, other regions that the plan allows come first, each at once.
    """

    attempts: Again = 3
    on: Annotated[
        tuple[Literal["CapacityError", "SpotInterruption", "Throttling", "InternalServerError"], ...], AsList
    ] = ("CapacityError", "SpotInterruption", "Throttling", "InternalServerError")
    delay: Number = 10.0
    elsewhere: bool = True


class EarlyStop(Part):
    """Which lines are stopped before their end, by the objective's metric; see `headrace.grid.controller.early_stop`.

    Attributes:
        after: step at which lines are judged first.
        factor: they are judged again at so many times that step, and so on; one of so many goes on.
        up_to: step after which no line is judged; None for no end.
    """

    after: Count
    factor: Annotated[int, BeforeValidator(whole(2))] = 3
    up_to: Count | None = None

    @model_validator(mode="after")
    def _has_a_rung(self) -> EarlyStop:
        if self.up_to is not None and self.up_to < self.after:
            raise broken("up_to must not be below after", seen=f"{self.up_to}, after {self.after}")
        return self


class GridBudget(Part):
    """What a grid may cost.

    Attributes:
        usd: USD of all its attempts and copies. When they have cost as much, nothing more begins and all is stopped.
    """

    usd: Number

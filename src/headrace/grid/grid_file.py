"""The file that a user writes for a grid: its shape, and the rules by which its lines run. `load_grid` reads it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from headrace.grid.batch_options import BatchOptions
from headrace.grid.placement.placement_rules import Number, PlacementRules
from headrace.job.model.field_types import AsList, AsMapping, JobName, Region, Seconds, one_line, whole
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
    on: Annotated[tuple[RetryCause, ...], AsList] = tuple(RetryCause)
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


Place = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 4096))]
Text = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 100_000))]
Query = Annotated[str, Field(min_length=1, max_length=100_000)]
Names = Annotated[tuple[Text, ...], AsList]
Values = Annotated[tuple[JsonValue, ...], AsList]
QUERY_SECONDS = 60.0


class Draw(Part):
    """Combinations that are drawn from a matrix.

    Attributes:
        count: how many.
        seed: the same seed draws the same.
    """

    count: Annotated[int, BeforeValidator(whole(1))]
    seed: Annotated[int, BeforeValidator(whole(0))] = 0


class LineSource(Part):
    """Where the lines of a grid come from: a file or a query, and a matrix that multiplies them; or the matrix alone.

    Attributes:
        file: CSV (with a header, or ``region,s3`` lines without one) or JSON lines (``.jsonl``, ``.ndjson``).
        columns: fields of a CSV file without a header, as a list; or field by the name of a column.
        query: rows are lines, and columns fields; ``:name`` is a parameter.
        database: URL of the query's database, as SQLAlchemy has it; ``${NAME}`` is a variable of the environment.
        parameters: of the query.
        timeout: seconds that the query may take.
        product: field to values; every combination is a line.
        zip: field to values; the first ones together, the second ones, and so on.
        random: draws some of the combinations.
    """

    file: Place | None = None
    columns: Names | Annotated[dict[str, Text], AsMapping] | None = None
    query: Query | None = None
    database: Text | None = None
    parameters: Annotated[dict[str, JsonValue], AsMapping] = Field(default_factory=dict)
    timeout: Seconds = QUERY_SECONDS
    product: Annotated[dict[str, Values], AsMapping] = Field(default_factory=dict)
    zip: Annotated[dict[str, Values], AsMapping] = Field(default_factory=dict)
    random: Draw | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> LineSource:
        if self.file and self.query:
            raise broken("lines come from a file or from a query", seen="both", hint="keep one of the two")
        if not (self.file or self.query or self.product or self.zip):
            raise broken("must name a file, a query, product or zip", seen="", hint="file: array.txt")
        if bool(self.query) != bool(self.database):
            raise broken("a query needs a database, and a database a query", seen="")
        if self.parameters and not self.query:
            raise broken("parameters belong to a query", seen="")
        if self.columns and not (self.file or self.query):
            raise broken("columns belong to a file or a query", seen="")
        if self.query and self.columns and not isinstance(self.columns, Mapping):
            raise broken("columns of a query have names: map each to its field", seen="")
        if self.random and not (self.product or self.zip):
            raise broken("random draws from product and zip", seen="")
        return self


class ObjectivePart(Part):
    """What a grid is run for.

    Attributes:
        metric: of the job's metric definitions, or of `headrace.log`; its last value counts.
        goal: whether the least or the greatest is the best.
    """

    metric: Text
    goal: Literal["min", "max"]


def nearly_named(metric: str, names: Iterable[str]) -> str:
    """Returns the name of which `metric` may be a misspelling, or an empty text.

    `val_accuracy`, logged once an epoch, is not near to `accuracy` (0.8)."""
    return next(iter(difflib.get_close_matches(metric, names, n=1, cutoff=0.85)), "")


class GridFile(Part):
    """A grid.

    Attributes:
        name: of the grid; names of its jobs begin with it.
        job: the job file from which every line's job is made; relative to the grid's file.
        lines: in what its jobs differ.
        placement: where they run.
        objective: what says which line is the best; None when none is.
        early_stop: which lines are stopped before their end, by the objective; None for none.
        batch: what AWS Batch needs to know to start them.
        engine: that runs its lines; a line's own field comes first.
        in_regions: fields and values, as a line has them, that hold for every line in a region: its buckets, profile,
            addresses; a line's own fields come first.
        limits: how much happens at once.
        retry: what is tried again.
        budget: what all of it may cost; None for no limit.
        deadline: seconds after its first start at which everything is stopped; None for no deadline.
    """

    name: JobName
    job: Place
    lines: LineSource
    placement: PlacementRules = PlacementRules()
    objective: ObjectivePart | None = None
    early_stop: EarlyStop | None = None
    batch: BatchOptions = BatchOptions()
    engine: Text = "local"
    in_regions: Annotated[dict[Region, Annotated[dict[str, JsonValue], AsMapping]], AsMapping] = Field(
        default_factory=dict
    )
    limits: Limits = Limits()
    retry: Retry = Retry()
    budget: GridBudget | None = None
    deadline: Seconds | None = None

    @model_validator(mode="after")
    def _has_what_it_judges_by(self) -> GridFile:
        if self.early_stop is not None and self.objective is None:
            hint = "objective: {metric: loss, goal: min}"
            raise broken("early_stop needs an objective: lines are judged by its metric", seen="", hint=hint)
        return self

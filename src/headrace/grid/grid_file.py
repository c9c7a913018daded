"""The file that a user writes for a grid: its shape, where its lines may run, and the rules by which they do.

Its parts `placement` (where lines run) and `batch` (AWS Batch) are here, too. `load_grid` reads it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import date
from enum import Enum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from headrace.catalog.aws_facts import ROLE_ARN, why_no_bucket
from headrace.errors import JobInvalid
from headrace.job.model.field_types import (
    AsList,
    AsMapping,
    InstanceType,
    JobName,
    Region,
    Seconds,
    as_tuple,
    known_regions,
    one_line,
    one_of,
    text_of,
    whole,
)
from headrace.job.model.frozen_model import Part
from headrace.job.model.path_types import names_bucket
from headrace.job.problems.finding import JobSource, broken, examine, show, suggestion

BASE = "public.ecr.aws/docker/library/python:3.12-slim"
"""Docker's own image of Python, from AWS's registry, which needs no login."""

_PLACE = re.compile(r"s3://(?P<bucket>[^/]+)(/[^*?$\s]*)?")


def _place(value: object) -> str:
    uri = text_of(value)
    match = _PLACE.fullmatch(uri)
    if match is None or why_no_bucket(match["bucket"]):
        raise broken("must be a bucket or a prefix in one", hint="such as s3://my-bucket/grids")
    return uri.rstrip("/")


def _account(value: object) -> str:
    number = text_of(value).zfill(12) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(number, str) or not re.fullmatch("[0-9]{12}", number):
        raise broken("must be the number of an account: 12 digits", hint="`aws sts get-caller-identity` shows it")
    return number


def _role(value: object) -> str:
    arn = text_of(value)
    if not ROLE_ARN.fullmatch(arn):
        raise broken("must be the ARN of a role", hint="such as arn:aws:iam::123456789012:role/name")
    return arn


Name = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 512))]
BundlePlace = Annotated[str, BeforeValidator(_place)]
Account = Annotated[str, BeforeValidator(_account)]
RoleArn = Annotated[str, BeforeValidator(_role)]
Platform = Annotated[Literal["fargate", "ec2"], one_of]


class BatchOptions(Part):
    """See the module.

    Attributes:
        queue: job queue, by name or ARN.
        region: of the queue and of the image; None for that of the environment or the profile.
        account: number of the account; None for that of the jobs' role.
        bundle: ``s3://`` prefix below which the lines, their jobs and their code are stored for the children.
        image: URI of the image of the children; None for the one that the exported definition makes.
        base: image with Python from which the exported definition makes it.
        job_role: ARN of the role of the children; None for the one that is exported.
        execution_role: ARN of the role that pulls the image and writes logs; None for the one that is exported.
        platform: what the queue's compute environment is made of.
        vcpus: of a child.
        memory: of a child, in MiB.
        public_ip: whether children on Fargate have a public address, as they need where no NAT leads to AWS.
        attempts: how often Batch starts a child at most.
        timeout: seconds after which Batch ends an attempt; None for no limit: every training job has its own.
        environment: further variables of the children.
    """

    queue: Name | None = None
    region: Region | None = None
    account: Account | None = None
    bundle: BundlePlace | None = None
    image: Name | None = None
    base: Name = BASE
    job_role: RoleArn | None = None
    execution_role: RoleArn | None = None
    platform: Platform = "fargate"
    vcpus: Annotated[int, whole(1, 16)] = 1
    memory: Annotated[int, whole(512, 122_880)] = 2048
    public_ip: bool = True
    attempts: Annotated[int, whole(1, 10)] = 3
    timeout: Seconds | None = None
    environment: Annotated[dict[str, Name], AsMapping] = Field(default_factory=dict)

    def changed(self, given: Mapping[str, object]) -> BatchOptions:
        """Returns the same with other values.

        Args:
            given: by field; None leaves what is there.

        Raises:
            JobInvalid: a value that cannot be.
        """
        data = {
            **self.model_dump(exclude_unset=True),
            **{name: each for name, each in given.items() if each is not None},
        }
        wrong = examine(BatchOptions, data)
        if wrong:
            raise JobInvalid(JobSource().problems(wrong))
        return BatchOptions.model_validate(data)


Wish = Literal["reserved", "data_local", "cheapest", "fastest"]
Regions = Annotated[tuple[Region, ...], AsList]
NOWHERE = "nowhere"
"""Stands among the regions of data that no region may hold together."""
TRANSFER_PRICE = 0.02
"""USD a GB from one region of AWS to another: the list price between most regions, as of 2024."""
GIGABYTES_PER_SECOND = 0.25
"""What a parallel copy between buckets of two regions reaches, as long as nobody says or measures another speed."""


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise broken("must be a number that is at least 0", seen=show(value))
    return float(value)


def _bucket_place(value: object) -> str:
    text = one_line(value, 1, 1024)
    if not names_bucket(text):
        raise broken("must be a place in a bucket", seen=show(value), hint="such as s3://my-bucket/copies")
    return text


def _reserved(value: object) -> object:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, dict) for each in value):
        hint = "such as [{instance_type: ml.p4d.24xlarge, count: 2}]"
        raise broken("must be a list of types with counts", seen=show(value), hint=hint)
    return value


Number = Annotated[float, BeforeValidator(_number)]
BucketPlace = Annotated[str, BeforeValidator(_bucket_place)]


class DataSet(Part):
    """Data below an ``s3://`` place.

    Attributes:
        region: where they are.
        gigabytes: how much a place that a line reads there holds; None when unknown: then no plan copies it.
        stays_in: regions that the law lets them be in; empty for all.
    """

    region: Region
    gigabytes: Number | None = None
    stays_in: Regions = ()


class Transfer(Part):
    """What copies between regions cost and how long they take.

    Attributes:
        price: USD a GB.
        speed: GB a second of one copy.
    """

    price: Number = TRANSFER_PRICE
    speed: Number = GIGABYTES_PER_SECOND

    @model_validator(mode="after")
    def _some_speed(self) -> Transfer:
        if not self.speed:
            raise broken("speed must be above 0", seen="")
        return self


class Reservation(Part):
    """Instances that are paid already: a training plan or a reservation.

    Attributes:
        instance_type: of which type.
        count: how many.
        arn: of the training plan, which the job is given; None for another kind.
    """

    instance_type: InstanceType
    count: Annotated[int, whole(1)]
    arn: str | None = None


class Spot(Part):
    """What spot capacity costs, by the user's own measure: SageMaker publishes no list.

    Attributes:
        share: of the list price that is paid, e.g. 0.35; by region, where ``default`` stands for all others.
        as_of: when it was measured.
    """

    share: Annotated[dict[str, Number], AsMapping]
    as_of: date

    @model_validator(mode="after")
    def _shares(self) -> Spot:
        for name, share in self.share.items():
            if name != "default" and name not in known_regions():
                hint = suggestion(name, ("default", *known_regions()))
                raise broken("share must name regions of AWS, or default", seen=show(name), hint=hint)
            if share > 1:
                raise broken(f"share of {name} must be at most 1", seen=str(share))
        return self

    def of(self, region: str) -> float | None:
        """Returns the share that is paid in a region; None when nobody said."""
        return self.share.get(region, self.share.get("default"))


class PlacementRules(Part):
    """See the module.

    Attributes:
        regions: candidates; empty: those of the data, and those that lines name.
        wishes: what counts first, second and so on; ties are broken by the next one, then by the cost,
            at last by the name.
        data: data sets by ``s3://`` place; a line's channel belongs to the longest place that it begins with.
        transfer: between regions.
        copy_to: ``s3://`` place below which copies of data lie, by the region in which it is.
        run_seconds: how long a line's job is expected to run; None: its max_run.
        deadline: seconds from the start of the plan by which a line's copy and job must be done; None for no deadline.
        spot: None: on demand.
        quotas: region to instance type to number of instances; what is not named has no limit.
        scores: region to placement score, 1 to 10, as EC2 gives it for spot capacity.
        least_score: regions whose score is known and lower are refused.
        reservations: by region.
        on: day of the price list; None for the newest prices.
    """

    regions: Regions = ()
    wishes: Annotated[tuple[Wish, ...], AsList] = ("reserved", "data_local", "cheapest", "fastest")
    data: Annotated[dict[str, DataSet], AsMapping] = Field(default_factory=dict)
    transfer: Transfer = Transfer()
    copy_to: Annotated[dict[Region, BucketPlace], AsMapping] = Field(default_factory=dict)
    run_seconds: Seconds | None = None
    deadline: Seconds | None = None
    spot: Spot | None = None
    quotas: Annotated[dict[Region, dict[InstanceType, Annotated[int, whole(0)]]], AsMapping] = Field(
        default_factory=dict
    )
    scores: Annotated[dict[Region, Annotated[int, whole(1, 10)]], AsMapping] = Field(default_factory=dict)
    least_score: Annotated[int, whole(1, 10)] = 1
    reservations: Annotated[
        dict[Region, Annotated[tuple[Reservation, ...], AsList, BeforeValidator(_reserved)]], AsMapping
    ] = Field(default_factory=dict)
    on: date | None = None

    @model_validator(mode="after")
    def _each_wish_once(self) -> PlacementRules:
        if not self.wishes or len(set(self.wishes)) < len(self.wishes):
            raise broken("wishes must be one or more, each once", seen=", ".join(self.wishes))
        return self

    def data_of(self, place: str) -> DataSet | None:
        """Returns what is known of the data that an ``s3://`` place names; None when nothing is.

        That is the data set with the longest place that holds it. A place that holds data sets itself is bound by the
        law of each, and its size is unknown: nothing of it can be copied by a plan. A prefix is text, so ``s3://b/priv``
        holds ``s3://b/private``.
        """
        wanted = place.rstrip("/")
        inside = [found for name, found in self.data.items() if _holds(wanted, name.rstrip("/"))]
        around = _longest(self.data, wanted)
        if not inside:
            return around
        every = [around, *inside] if around else inside
        laws = [set(found.stays_in) for found in every if found.stays_in]
        allowed = set.intersection(*laws) if laws else set()
        if laws and not allowed:
            allowed = {NOWHERE}
        return DataSet.model_construct(region=every[0].region, gigabytes=None, stays_in=tuple(sorted(allowed)))


def _holds(prefix: str, place: str) -> bool:
    """Tells whether a prefix names more than a place, and the place too.

    >>> _holds("s3://b/priv", "s3://b/private"), _holds("s3://b", "s3://bucket")
    (True, False)
    """
    same_bucket = prefix.split("/")[:3] == place.split("/")[:3]
    return same_bucket and prefix != place and place.startswith(prefix)


def _longest(data: Mapping[str, DataSet], place: str) -> DataSet | None:
    while place:
        if place in data or f"{place}/" in data:
            return data.get(place) or data[f"{place}/"]
        place = place.rpartition("/")[0]
    return None


LONGEST_DELAY = 600.0
"""Seconds: pauses between attempts double up to here."""
Count = Annotated[int, whole(1)]
Again = Annotated[int, whole(0, 100)]


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
    factor: Annotated[int, whole(2)] = 3
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


def _values(value: object) -> tuple[object, ...]:
    values = as_tuple(value, "a list")
    if not values:
        raise broken("must have a value", seen="")
    return values


Place = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 4096))]
Text = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 100_000))]
Query = Annotated[str, Field(min_length=1, max_length=100_000)]
Names = Annotated[tuple[Text, ...], AsList]
Values = Annotated[tuple[JsonValue, ...], BeforeValidator(_values)]
QUERY_SECONDS = 60.0


class Draw(Part):
    """Combinations that are drawn from a matrix.

    Attributes:
        count: how many.
        seed: the same seed draws the same.
    """

    count: Annotated[int, whole(1)]
    seed: Annotated[int, whole(0)] = 0


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


class Objective(Part):
    """What a grid is run for.

    Attributes:
        metric: of the job's metric definitions, or of `headrace.log`; its last value counts.
        goal: whether the least or the greatest is the best.
    """

    metric: Text
    goal: Annotated[Literal["min", "max"], one_of]


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
    objective: Objective | None = None
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

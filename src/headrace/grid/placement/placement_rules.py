"""What a user says about the placement of a grid's lines: part `placement` of the grid's file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.job.model.field_types import (
    AsList,
    AsMapping,
    InstanceType,
    Region,
    Seconds,
    known_regions,
    one_line,
    whole,
)
from headrace.job.model.frozen_model import Part
from headrace.job.model.path_types import names_bucket
from headrace.job.problems.finding import broken, show, suggestion

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
    count: Annotated[int, BeforeValidator(whole(1))]
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
    quotas: Annotated[dict[Region, dict[InstanceType, Annotated[int, BeforeValidator(whole(0))]]], AsMapping] = Field(
        default_factory=dict
    )
    scores: Annotated[dict[Region, Annotated[int, BeforeValidator(whole(1, 10))]], AsMapping] = Field(
        default_factory=dict
    )
    least_score: Annotated[int, BeforeValidator(whole(1, 10))] = 1
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

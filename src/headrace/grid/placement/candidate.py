"""One region in which a line could run: what that costs, how long it takes, and why it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headrace.catalog.prices import Price


class Refusal(Enum):
    """Why a line cannot run in a region."""

    LAW = "law"
    NOT_OFFERED = "not offered"
    QUOTA = "quota"
    SCORE = "placement score"
    SIZE_UNKNOWN = "size of the data unknown"
    NOT_COPIED = "a list of objects, which would have to be copied:"
    NO_PLACE = "copy_to names no place there for"
    DEADLINE = "deadline"
    OTHER_REGION = "the line names another region"


@dataclass(frozen=True)
class Refused:
    """Why, with what decided.

    Attributes:
        refusal: the kind.
        what: the type, data set or limit that it is about.
        number: that decided; None where no number did.
        limit: with which it was compared; None where there was none.
    """

    refusal: Refusal
    what: str = ""
    number: float | None = None
    limit: float | None = None


class PlaceSize(NamedTuple):
    """How much a place holds.

    Attributes:
        gigabytes: GB, of 10^9 bytes.
        objects: how many.
    """

    gigabytes: float
    objects: int


@dataclass(frozen=True)
class Copy:
    """Data that a line needs in a region where they are not.

    Attributes:
        place: ``s3://`` place of the data.
        source: region where they are.
        gigabytes: how much.
        cost: USD.
        seconds: that it takes.
        objects: how many they are; None when unknown.
    """

    place: str
    source: str
    gigabytes: float
    cost: float
    seconds: float
    objects: int | None = None


class Candidate(NamedTuple):
    """A region for a line.

    Attributes:
        region: its name.
        price: USD an hour of all hosts, as they are paid; None when `unpriced` has something.
        prices: rows of the price list that it is made of.
        unpriced: types whose price is unknown, ``spot`` for an unknown share of it. Where a price decides, such a
            region comes last.
        run_cost: USD, for the seconds that the job is expected to run; None with an unknown price.
        copies: data that must be copied first; their cost is in `cost`, though other lines may share them.
        seconds: until the job is done: the longest copy, and the run.
        reserved: all instances are paid already.
        refused: every reason against it; empty for a region that can be chosen.
        spot_share: of the list price, that is paid on spare capacity by the user's own measure; None where the list
            price is paid, or nobody said.
    """

    region: str
    price: float | None
    prices: tuple[Price, ...]
    unpriced: tuple[str, ...]
    run_cost: float | None
    copies: tuple[Copy, ...]
    seconds: float
    reserved: bool
    refused: tuple[Refused, ...]
    spot_share: float | None = None

    @property
    def copy_cost(self) -> float:
        """USD for copies."""
        return sum(copy.cost for copy in self.copies)

    @property
    def cost(self) -> float | None:
        """USD for copies and run; None with an unknown price."""
        return None if self.run_cost is None else self.run_cost + self.copy_cost


@dataclass(frozen=True)
class Placed:
    """Where a line runs.

    Attributes:
        chosen: the region; None when every one is refused.
        others: all other candidates, the best ones first, refused ones last.
        decided_by: the first wish in which the chosen one is better than the best other one; empty when there is no
            other one that can be chosen, or nothing but the name tells them apart.
    """

    chosen: Candidate | None
    others: tuple[Candidate, ...]
    decided_by: str = ""

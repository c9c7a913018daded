"""List prices of instances: what an hour of a type costs in a region, with source and date.

The prices are in `prices.csv` beside this module, with their sources. The table is read when the first price is needed;
nothing is fetched. A price that is not in the table is unknown; another region's price is never used instead.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

CURRENCY = "USD"
DEFAULT_REGION = "us-east-1"
"""The region whose prices are shown when none is given."""

SAGEMAKER = "sagemaker"
EC2 = "ec2"


@dataclass(frozen=True)
class Price:
    """What one instance costs an hour, by the list, on demand.

    Attributes:
        instance_type: e.g. ``ml.c5.xlarge``; ``c5.xlarge`` of the service ``ec2``.
        service: ``sagemaker`` (training) or ``ec2``.
        region: e.g. ``us-east-1``.
        price: in `unit`, without taxes.
        status: ``published`` when the source states it, ``derived`` when `rule` computes it from another row.
        rule: ``ec2 DATE x F`` or ``us-east-1 x 1``; empty for a published price.
        source: who states it, or states what it is derived from.
        licence: of the source.
        as_of: when the source was written: ISO 8601, a date or only its year or month where nothing more is known.
        offered: whether the region had the type in October 2026; None when that is unknown.
        unit, term: of the price.
    """

    instance_type: str
    service: str
    region: str
    price: float
    status: str
    rule: str
    source: str
    licence: str
    as_of: str
    offered: bool | None
    unit: str = "USD/hour"
    term: str = "on-demand"


def parse(lines: Iterable[str]) -> tuple[Price, ...]:
    """Reads the table.

    Args:
        lines: of a CSV file whose columns are the attributes of `Price`, without unit and term; `#` starts a comment
            line.

    Raises:
        ValueError: a price that is not a number, or a row that stands twice.
    """
    found: dict[tuple[str, str, str, str], Price] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        key = (row["instance_type"], row["service"], row["region"], row["as_of"])
        if key in found:
            raise ValueError(f"{' '.join(key)} comes twice")
        found[key] = Price(
            instance_type=row["instance_type"],
            service=row["service"],
            region=row["region"],
            price=float(row["price"]),
            status=row["status"],
            rule=row["rule"],
            source=row["source"],
            licence=row["licence"],
            as_of=row["as_of"],
            offered={"yes": True, "no": False}.get(row["offered"]),
        )
    return tuple(found.values())


@functools.cache
def prices() -> tuple[Price, ...]:
    """Returns every price, in the order of the table."""
    return parse(Path(__file__).with_name("prices.csv").read_text(encoding="utf-8").splitlines())


@functools.cache
def _by_key() -> dict[tuple[str, str, str], tuple[Price, ...]]:
    found: dict[tuple[str, str, str], tuple[Price, ...]] = {}
    for price in prices():
        key = (price.instance_type, price.region, price.service)
        found[key] = (*found.get(key, ()), price)
    return found


def price_of(
    instance_type: str, region: str = DEFAULT_REGION, *, service: str = SAGEMAKER, on: date | None = None
) -> Price | None:
    """Returns the newest price that was known on a day; None when there is none.

    Args:
        instance_type: e.g. ``ml.p4d.24xlarge``.
        region: e.g. ``us-east-1``.
        service: ``sagemaker`` or ``ec2``.
        on: the day; None for the newest of all. A price whose source names only its year counts from that year's end.
    """
    known = _by_key().get((instance_type, region, service), ())
    in_time = [price for price in known if on is None or last_day(price.as_of) <= on]
    return max(in_time, key=lambda price: last_day(price.as_of), default=None)


@functools.cache
def regions(service: str = SAGEMAKER) -> tuple[str, ...]:
    """Returns the regions of which some price is known, sorted."""
    return tuple(sorted({price.region for price in prices() if price.service == service}))


def last_day(as_of: str) -> date:
    """Returns the last day of a date, month or year.

    >>> last_day("2024"), last_day("2022-09"), last_day("2019-04-05")
    (datetime.date(2024, 12, 31), datetime.date(2022, 9, 30), datetime.date(2019, 4, 5))

    Raises:
        ValueError: none of these.
    """
    parts = [int(part) for part in as_of.split("-")]
    if len(parts) == 3:
        return date(*parts)
    if len(parts) == 1:
        return date(parts[0], 12, 31)
    year, month = parts
    next_month = date(year, month, 28) + timedelta(days=4)
    return next_month - timedelta(days=next_month.day)

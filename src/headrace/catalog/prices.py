"""List prices of instances: what an hour of a type costs in a region, with source and date.

The prices are in `prices.csv` beside this module, with their sources, and in the user's own list, which
`headrace.catalog.price_update` writes. The tables are read when the first price is needed; nothing is fetched. A price
that is in neither is unknown; another region's price is never used instead.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from headrace.errors import UsageError
from headrace.home import home_dir

CURRENCY = "USD"
DEFAULT_REGION = "us-east-1"
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}")
"""The region whose prices are shown when none is given."""

SAGEMAKER = "sagemaker"
EC2 = "ec2"


COLUMNS = (
    "instance_type", "service", "region", "price", "status", "rule", "as_of", "offered", "source", "licence",
)  # fmt: skip
"""Of a table of prices."""
_OFFERED = {True: "yes", False: "no", None: ""}


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
    """Reads a table.

    Args:
        lines: of a CSV file whose columns are the attributes of `Price`, without unit and term; `#` starts a comment
            line.

    Raises:
        ValueError: a column that is missing, a price or a date that is none, or a row that stands twice.
    """
    found: dict[tuple[str, str, str, str], Price] = {}
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"the columns {', '.join(missing)} are missing; it has {', '.join(rows.fieldnames or ())}")
    for row in rows:
        price = _price(row)
        key = (price.instance_type, price.service, price.region, price.as_of)
        if key in found:
            raise ValueError(f"{' '.join(key)} comes twice")
        found[key] = price
    return tuple(found.values())


def _price(row: Mapping[str, str | None]) -> Price:
    text = {name: row[name] or "" for name in COLUMNS}
    what = " ".join(text[name] for name in ("instance_type", "service", "region"))
    try:
        amount = float(text["price"])
    except ValueError:
        raise ValueError(f"{what}: the price {text['price']!r} is no number") from None
    if not math.isfinite(amount) or amount <= 0:
        raise ValueError(f"{what}: the price {text['price']} is not above 0")
    try:
        last_day(text["as_of"])
    except ValueError:
        raise ValueError(f"{what}: the date {text['as_of']!r} is none such as 2026-11-01") from None
    offered = {"yes": True, "no": False}.get(text.pop("offered"))
    return Price(price=amount, offered=offered, **{name: value for name, value in text.items() if name != "price"})


def table_text(rows: Iterable[Price], comment: str) -> str:
    """Returns a table as `parse` reads it.

    Args:
        rows: its prices.
        comment: what it says of itself, a line.
    """
    out = io.StringIO()
    out.write(f"# {comment}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        shown = {**{name: getattr(row, name) for name in COLUMNS}, "offered": _OFFERED[row.offered]}
        writer.writerow([shown[name] for name in COLUMNS])
    return out.getvalue()


@dataclass(frozen=True)
class _Table:
    """All prices that are known, those of the user's own list first."""

    rows: tuple[Price, ...]
    by_key: dict[tuple[str, str, str], tuple[tuple[bool, Price], ...]]
    regions: dict[str, tuple[str, ...]]


@functools.cache
def packaged() -> tuple[Price, ...]:
    """Returns the prices that travel with headrace, in the order of their table."""
    return parse(Path(__file__).with_name("prices.csv").read_text(encoding="utf-8").splitlines())


def own_list() -> Path:
    """Returns where the user's own price list is, if there is one: what `headrace prices update` writes."""
    return home_dir() / "prices.csv"


def own_prices() -> tuple[Price, ...]:
    """Returns the prices of the user's own list, in its order; none without one.

    Raises:
        UsageError: it cannot be read.
    """
    path = own_list()
    try:
        return parse(path.read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:  # UnicodeDecodeError is one
        hint = "correct it, or remove it and run `headrace prices update` again"
        raise UsageError(f"the price list {path} cannot be read: {error}", hint) from error


@functools.lru_cache(maxsize=2)
def _table(_: object) -> _Table:
    own = own_prices()
    rows = (*own, *packaged())
    found: dict[tuple[str, str, str], tuple[tuple[bool, Price], ...]] = {}
    for number, price in enumerate(rows):
        key = (price.instance_type, price.region, price.service)
        found[key] = (*found.get(key, ()), (number < len(own), price))
    services = {price.service for price in rows}
    regions = {each: tuple(sorted({price.region for price in rows if price.service == each})) for each in services}
    return _Table(rows, found, regions)


def _known() -> _Table:
    """Returns the table; a list that has changed since is read again, as a process that lives long needs it."""
    path = own_list()
    try:
        known = path.stat()
    except OSError:
        return _table(path)
    return _table((path, known.st_mtime_ns, known.st_size, known.st_ino))


def prices() -> tuple[Price, ...]:
    """Returns every price: those of the user's own list, then those that travel with headrace. Raises UsageError."""
    return _known().rows


def price_of(
    instance_type: str, region: str = DEFAULT_REGION, *, service: str = SAGEMAKER, on: date | None = None
) -> Price | None:
    """Returns the newest price that was known on a day; None when there is none.

    A price of the user's own list comes before any that travels with headrace.

    Args:
        instance_type: e.g. ``ml.p4d.24xlarge``.
        region: e.g. ``us-east-1``.
        service: ``sagemaker`` or ``ec2``.
        on: the day; None for the newest of all. A price whose source names only its year counts from that year's end.

    Raises:
        UsageError: the user's own list cannot be read.
    """
    known = _known().by_key.get((instance_type, region, service), ())
    in_time = [(own, price) for own, price in known if on is None or last_day(price.as_of) <= on]
    newest = max(in_time, key=lambda each: (each[0], last_day(each[1].as_of)), default=None)
    return None if newest is None else newest[1]


def is_region(name: str) -> bool:
    """Tells whether a name has the form of a region's.

    >>> is_region("us-gov-west-1"), is_region("region"), is_region("US")
    (True, False, False)
    """
    return _REGION.fullmatch(name) is not None


def regions(service: str = SAGEMAKER) -> tuple[str, ...]:
    """Returns the regions of which some price is known, sorted. Raises UsageError."""
    return _known().regions.get(service, ())


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


SECONDS_PER_HOUR = 3600


def cost(price_per_hour: float, seconds: float) -> float:
    """Returns what instances cost: ``price_per_hour * seconds / 3600``.

    Args:
        price_per_hour: of one instance, or of several that run for the same time, added up.
        seconds: how long it runs; of several instances with one price, their seconds added up.

    Returns:
        Money in the currency of the price.

    >>> cost(3.825, 1.19)  # a step of 1.19 s on one ml.p3.2xlarge: 0.126 cent
    0.001264375
    """
    return price_per_hour * seconds / SECONDS_PER_HOUR

"""List prices of instances: what an hour of a type costs in a region, with source and date.

The prices are in `prices.csv` beside this module, with their sources, and in the user's own list, which
`headrace.catalog.prices` writes. The tables are read when the first price is needed; nothing is fetched. A price
that is in neither is unknown; another region's price is never used instead.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.home import home_dir
from headrace.private_folders import make_folders

CURRENCY = "USD"
DEFAULT_REGION = "us-east-1"
"""The region whose prices are shown when none is given."""
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}")

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
    prices_by_key: dict[tuple[str, str, str, str], Price] = {}
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"the columns {', '.join(missing)} are missing; it has {', '.join(rows.fieldnames or ())}")
    for row in rows:
        price = _price(row)
        key = (price.instance_type, price.service, price.region, price.as_of)
        if key in prices_by_key:
            raise ValueError(f"{' '.join(key)} comes twice")
        prices_by_key[key] = price
    return tuple(prices_by_key.values())


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
    by_key: dict[tuple[str, str, str], tuple[tuple[bool, Price], ...]] = {}
    for number, price in enumerate(rows):
        key = (price.instance_type, price.region, price.service)
        by_key[key] = (*by_key.get(key, ()), (number < len(own), price))
    services = {price.service for price in rows}
    regions = {
        service: tuple(sorted({price.region for price in rows if price.service == service})) for service in services
    }
    return _Table(rows, by_key, regions)


def _known() -> _Table:
    """Returns the table; a list that has changed since is read again, as a process that lives long needs it."""
    path = own_list()
    try:
        status = path.stat()
    except OSError:
        return _table(path)
    return _table((path, status.st_mtime_ns, status.st_size, status.st_ino))


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
    entries = _known().by_key.get((instance_type, region, service), ())
    in_time = [(own, price) for own, price in entries if on is None or last_day(price.as_of) <= on]
    newest = max(in_time, key=lambda entry: (entry[0], last_day(entry[1].as_of)), default=None)
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


OFFER = "AmazonSageMaker"
_USAGE = re.compile(r"(?:[A-Z0-9]+-)?Train:(ml\.[a-z0-9-]+\.[a-z0-9-]+)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_LICENCE = "AWS, public price list"


def offer_prices(text: str, read_on: str) -> tuple[Price, ...]:
    """Returns the prices of training of an offer file in JSON.

    Args:
        text: its content.
        read_on: the day, ISO 8601, which the source names.

    Raises:
        ValueError: it is none, or of another service.
    """
    return newest(_offer_rows(text), read_on)


def product_rows(product: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yields the rates of a product of the API, or of an offer file put into that form.

    Raises:
        ValueError: it lacks what every product has.
    """
    try:
        attributes = product["product"]["attributes"]
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for rate in term["priceDimensions"].values():
                yield {
                    "usage": attributes.get("usagetype", ""),
                    "region": attributes.get("regionCode", ""),
                    "amount": rate["pricePerUnit"].get(CURRENCY, ""),
                    "unit": rate["unit"],
                    "since": term["effectiveDate"],
                    "version": product.get("version", ""),
                    "published": product.get("publicationDate", ""),
                }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a product is not as AWS's price lists have it: {error!r}") from None


def newest(rows: Iterable[Mapping[str, str]], read_on: str) -> tuple[Price, ...]:
    """Returns the prices of training, of each type and region the one of the newest term.

    Args:
        rows: rates, of whatever products.
        read_on: the day, ISO 8601.

    Raises:
        ValueError: a rate of training that is no price.
    """
    by_type: dict[tuple[str, str], Price] = {}
    for row in rows:
        match = _USAGE.fullmatch(row["usage"])
        if match is None or not row["region"] or not row["amount"]:  # another product, or another currency
            continue
        price = _offered_price(match[1], row, read_on)
        before = by_type.get((price.instance_type, price.region))
        if price.price > 0 and (before is None or before.as_of <= price.as_of):
            by_type[price.instance_type, price.region] = price
    return tuple(by_type[key] for key in sorted(by_type))


def _offered_price(instance_type: str, row: Mapping[str, str], read_on: str) -> Price:
    what = f"{row['usage']} in {row['region']}"
    since, published = row["since"][:10], row["published"][:10]
    if not _DATE.fullmatch(since):
        raise ValueError(f"{what}: the date {row['since']!r} is none")
    if row["unit"].lower() not in ("hrs", "hour", "hours"):
        raise ValueError(f"{what}: the unit is {row['unit']!r}, not hours")
    try:
        amount = float(row["amount"])
    except ValueError:
        raise ValueError(f"{what}: the price {row['amount']!r} is no number") from None
    if not math.isfinite(amount) or amount < 0:
        raise ValueError(f"{what}: the price {row['amount']!r} is none")
    version = f" {row['version']}" if row["version"] else ""
    dated = f", published {published}" if published else ""
    return Price(
        instance_type=instance_type,
        service=SAGEMAKER,
        region=row["region"],
        price=amount,
        status="published",
        rule="",
        source=f"AWS price list {OFFER}{version}{dated}, read {read_on}",
        licence=_LICENCE,
        as_of=since,
        offered=None,
    )


def _offer_rows(text: str) -> Iterator[dict[str, str]]:
    try:
        offer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if (code := str(offer.get("offerCode", ""))) != OFFER:
        raise ValueError(f"it is the price list of {code or 'no service'}, not of {OFFER}")
    if not isinstance(offer.get("products"), dict) or not isinstance(offer.get("terms"), dict):
        raise ValueError("it has no products and terms")
    terms = offer["terms"].get("OnDemand", {})
    shared = {name: offer.get(name, "") for name in ("version", "publicationDate")}
    for sku, product in offer["products"].items():
        yield from product_rows({"product": product, "terms": {"OnDemand": terms.get(sku, {})}, **shared})


@dataclass(frozen=True)
class PriceChange:
    """What an update does to a price.

    Attributes:
        instance_type, service, region: whose.
        before: the price that is taken now; None when none is known.
        after: the one that is taken then.
    """

    instance_type: str
    service: str
    region: str
    before: Price | None
    after: Price


def read_price_file(path: Path, today: str) -> tuple[Price, ...]:
    """Returns the prices of a file: AWS's offer file in JSON, or a table as headrace's own.

    Args:
        path: the file.
        today: ISO 8601, which the source of an offer file names.

    Raises:
        UsageError: it cannot be read, or has no price of training.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        prices_read = offer_prices(text, today) if text.lstrip().startswith("{") else parse(text.splitlines())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "give the path of a price list") from error
    except ValueError as error:  # UnicodeDecodeError is one
        hint = "give AWS's offer file of AmazonSageMaker in JSON, or a table with headrace's columns"
        raise UsageError(f"{path} is no price list: {error}", hint) from error
    if not prices_read:
        hint = "usage types of training are such as USE1-Train:ml.m5.large"
        raise UsageError(f"{path} has no price of training", hint)
    return prices_read


def updated(new: Sequence[Price]) -> tuple[Price, ...]:
    """Returns the user's list with new prices, each in place of the one of its type, region and date.

    Raises:
        UsageError: the list that is there cannot be read.
    """
    rows = {_key(price): price for price in (*own_prices(), *new)}
    return tuple(rows[key] for key in sorted(rows))


def changes(new: Sequence[Price]) -> tuple[PriceChange, ...]:
    """Returns what new prices change of those that are taken now: other amounts, and prices that were not known.

    Raises:
        UsageError: the list that is there cannot be read.
    """
    changed: dict[tuple[str, str, str], PriceChange] = {}
    for price in sorted(new, key=_key):  # the newest of a type and region comes last
        before = price_of(price.instance_type, price.region, service=price.service)
        if before is None or before.price != price.price:
            key = (price.instance_type, price.service, price.region)
            changed[key] = PriceChange(*key, before, price)
    return tuple(changed.values())


def write_list(rows: Sequence[Price], today: str) -> Path:
    """Writes the user's list: the file is the old one or the new one at any moment. Returns its path.

    Raises:
        UsageError: it cannot be written.
    """
    path = own_list()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    text = table_text(rows, f"price list of `headrace prices update`, {today}; remove this file to have headrace's own")
    try:
        make_folders(path.parent)
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}", "HEADRACE_HOME names another folder"
        ) from error
    return path


def _key(price: Price) -> tuple[str, str, str, str]:
    return (price.instance_type, price.service, price.region, price.as_of)

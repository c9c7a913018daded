"""The user's own price list: what a new one would change, and writing it, whole or not at all.

What it reads are AWS's own lists (the offer file in JSON, the products of its API) or a table as headrace's.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.catalog.prices import CURRENCY, SAGEMAKER, Price, own_list, own_prices, parse, price_of, table_text
from headrace.errors import UsageError
from headrace.private_folders import make_folders

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
    found: dict[tuple[str, str], Price] = {}
    for row in rows:
        match = _USAGE.fullmatch(row["usage"])
        if match is None or not row["region"] or not row["amount"]:  # another product, or another currency
            continue
        price = _offered_price(match[1], row, read_on)
        before = found.get((price.instance_type, price.region))
        if price.price > 0 and (before is None or before.as_of <= price.as_of):
            found[price.instance_type, price.region] = price
    return tuple(found[key] for key in sorted(found))


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
        found = offer_prices(text, today) if text.lstrip().startswith("{") else parse(text.splitlines())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "give the path of a price list") from error
    except ValueError as error:  # UnicodeDecodeError is one
        hint = "give AWS's offer file of AmazonSageMaker in JSON, or a table with headrace's columns"
        raise UsageError(f"{path} is no price list: {error}", hint) from error
    if not found:
        hint = "usage types of training are such as USE1-Train:ml.m5.large"
        raise UsageError(f"{path} has no price of training", hint)
    return found


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
    found: dict[tuple[str, str, str], PriceChange] = {}
    for price in sorted(new, key=_key):  # the newest of a type and region comes last
        before = price_of(price.instance_type, price.region, service=price.service)
        if before is None or before.price != price.price:
            key = (price.instance_type, price.service, price.region)
            found[key] = PriceChange(*key, before, price)
    return tuple(found.values())


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

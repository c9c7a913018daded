"""Prices of SageMaker training out of AWS's own price lists: its offer file in JSON, and what its API gives.

    offer file   {"offerCode", "version", "publicationDate", "products": {SKU: {"attributes"}}, "terms"}
    the API      products one by one: {"product": {"attributes"}, "terms", "version", "publicationDate"}

Which product is an hour of training on an instance type only its usage type tells: ``USE1-Train:ml.m5.large``. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.catalog.prices import CURRENCY, SAGEMAKER, Price

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
        price = _price(match[1], row, read_on)
        before = found.get((price.instance_type, price.region))
        if price.price > 0 and (before is None or before.as_of <= price.as_of):
            found[price.instance_type, price.region] = price
    return tuple(found[key] for key in sorted(found))


def _price(instance_type: str, row: Mapping[str, str], read_on: str) -> Price:
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

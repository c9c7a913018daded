"""Prices of SageMaker training from AWS's Pricing API: `pricing:GetProducts`, all pages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.catalog.price_update import OFFER, newest, product_rows
from headrace.catalog.prices import Price
from headrace.cloud.aws_calls import Client, call
from headrace.errors import CloudError

API_REGION = "us-east-1"
"""The API is in few regions, and has the prices of all."""
_TRAINING = {"Type": "CONTAINS", "Field": "usagetype", "Value": "Train:ml."}
_PAGE = 100


def asked_prices(client: Client, regions: Sequence[str], read_on: str) -> tuple[Price, ...]:
    """Asks for the prices of training.

    Args:
        client: of ``pricing``.
        regions: of which; none for all.
        read_on: today, ISO 8601, which the source names.

    Raises:
        CloudError, UsageError: the API cannot be asked, or its answer is not a price list.
    """
    try:
        rows = [row for region in regions or ("",) for each in _products(client, region) for row in product_rows(each)]
        return newest(rows, read_on)
    except ValueError as error:
        raise CloudError(f"pricing:GetProducts: the answer cannot be read: {error}") from error


def _products(client: Client, region: str) -> Iterator[Any]:
    filters = [_TRAINING, *([{"Type": "EQUALS", "Field": "regionCode", "Value": region}] if region else [])]
    asked: dict[str, Any] = {"ServiceCode": OFFER, "Filters": filters, "MaxResults": _PAGE}
    while True:
        page = call(client, "get_products", **asked)
        yield from map(json.loads, page.get("PriceList", ()))
        if not page.get("NextToken"):
            return
        asked["NextToken"] = page["NextToken"]

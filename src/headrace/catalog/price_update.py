"""The user's own price list: what a new one would change, and writing it, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.aws_price_list import offer_prices
from headrace.catalog.prices import Price, own_list, own_prices, parse, price_of, table_text
from headrace.errors import UsageError
from headrace.private_folders import make_folders


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

"""The table of prices: every row says where it comes from, and derived rows follow from others. The cost function."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from headrace.catalog import prices as catalog
from headrace.catalog.instance_types import KNOWN
from headrace.catalog.prices import Price, cost, last_day, parse, price_of, regions
from headrace.catalog.prices import packaged as prices

TABLE = Path(catalog.__file__).with_name("prices.csv")
HEADER = "instance_type,service,region,price,status,rule,as_of,offered,source,licence"
ISO = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")
REGION = re.compile(r"(us|eu|ap|ca)-(north|south|east|west|central)+-\d")
EC2_RULE = re.compile(r"ec2 (\d{4}-\d\d-\d\d) x (\d\.\d+)")
COPIED = "us-east-1 x 1"


def name(price: Price) -> str:
    return f"{price.instance_type}-{price.service}-{price.region}-{price.as_of}"


def test_every_row_is_whole() -> None:
    for price in prices():
        check_row(price)


def check_row(price: Price) -> None:
    what = name(price)
    assert (price.instance_type if price.service == "sagemaker" else f"ml.{price.instance_type}") in KNOWN, what
    assert price.service in ("sagemaker", "ec2"), what
    assert REGION.fullmatch(price.region), what
    assert 0.01 < price.price < 1000, what
    assert (price.unit, price.term) == ("USD/hour", "on-demand")
    assert ISO.fullmatch(price.as_of), what
    assert date(2019, 1, 1) <= last_day(price.as_of) <= date(2026, 11, 21), what
    assert price.source, what
    assert price.licence, what
    assert price.offered is not None, what
    assert (price.status, bool(price.rule)) in (("published", False), ("derived", True)), what


def test_a_derived_price_follows_from_the_row_that_its_rule_names() -> None:
    derived = [price for price in prices() if price.status == "derived"]
    assert len(derived) > 150
    for price in derived:
        check_rule(price)


def check_rule(price: Price) -> None:
    if price.rule == COPIED:
        assert price.region == "us-west-2"
        (origin,) = [
            each
            for each in prices()
            if (each.instance_type, each.region, each.as_of) == (price.instance_type, "us-east-1", price.as_of)
            and each.source == price.source
        ]
        assert (price.price, origin.status) == (origin.price, "published")
        return
    rule = EC2_RULE.fullmatch(price.rule)
    assert rule, price.rule
    (base,) = [
        each
        for each in prices()
        if (each.instance_type, each.service, each.region, each.as_of)
        == (price.instance_type.removeprefix("ml."), "ec2", price.region, rule[1])
    ]
    assert base.status == "published"
    assert price.price == pytest.approx(base.price * float(rule[2]), abs=0.000051), name(price)
    assert price.source == base.source
    assert price.as_of >= "2021", "the factors were read from pairs of 2021 and later"


def test_published_and_derived_prices_of_one_type_and_region_agree() -> None:
    """The factors come from the published pairs; a page rounds to a tenth of a cent, a notebook to ten cents."""
    for price in prices():
        for other in prices():
            same = (price.instance_type, price.service, price.region) == (
                other.instance_type,
                other.service,
                other.region,
            )
            if same:
                assert price.price == pytest.approx(other.price, rel=0.003), (name(price), name(other))


def test_the_table_is_plain_text_without_strange_bytes() -> None:
    data = TABLE.read_bytes()
    assert data.isascii()
    assert b"\r" not in data
    assert data.endswith(b"\n")
    rows = [line for line in data.decode().splitlines() if not line.startswith("#")]
    assert rows[0] == HEADER
    assert len(rows) - 1 == len(prices()) > 400


def test_the_newest_price_that_was_known_on_a_day_is_taken() -> None:
    def known(on: date | None) -> tuple[float, str] | None:
        price = price_of("ml.p4d.24xlarge", on=on)
        return None if price is None else (price.price, price.as_of)

    assert known(None) == (37.688, "2024")
    assert known(date(2024, 12, 31)) == (37.688, "2024")
    assert known(date(2024, 12, 30)) == (37.7, "2022-09")  # in 2024, but nobody knows when
    assert known(date(2022, 9, 29)) is None


def test_what_is_not_known_is_none_and_no_other_price_stands_in() -> None:
    assert price_of("ml.p4d.24xlarge", "eu-west-1") is None
    assert price_of("ml.p4d.24xlarge", "no-such-1") is None
    assert price_of("local") is None
    assert price_of("c5.18xlarge") is None
    assert price_of("ml.c5.18xlarge", service="ec2") is None
    ec2 = price_of("c5.18xlarge", service="ec2")
    assert ec2 is not None
    assert (ec2.price, ec2.as_of) == (3.06, "2026-01-19")


def test_p3_is_priced_and_no_longer_offered_and_was_never_in_us_west_1() -> None:
    p3 = price_of("ml.p3.16xlarge")
    assert p3 is not None
    assert (p3.price, p3.offered) == (28.152, False)
    assert price_of("ml.p3.16xlarge", "us-west-1") is None
    frankfurt = price_of("ml.p3.16xlarge", "eu-central-1")
    assert frankfurt is not None
    assert (frankfurt.price, frankfurt.status) == (35.1716, "derived")  # 25 % above us-east-1
    p4d = price_of("ml.p4d.24xlarge")
    assert p4d is not None
    assert p4d.offered is True


def test_regions_are_those_of_some_price() -> None:
    assert len(regions()) == 12
    assert {"us-east-1", "eu-central-1", "ap-south-1"} <= set(regions())


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ("ml.a.b,ec2,r,1,published,,2024,yes,s,l", "comes twice"),
        ("ml.a.c,ec2,r,x,published,,2024,yes,s,l", "no number"),
    ],
)
def test_a_damaged_table_is_refused(row: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse(["# c", HEADER, "ml.a.b,ec2,r,1,published,,2024,yes,s,l", row])


@pytest.mark.parametrize("text", ["2024-13", "2024-02-30", "x", ""])
def test_a_date_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        last_day(text)


def test_importing_the_prices_reads_no_table_and_loads_no_library() -> None:
    code = (
        "import sys, builtins, pathlib; before = set(sys.modules)\n"
        "pathlib.Path.read_text = None\n"
        "import headrace.catalog.prices, headrace.catalog.prices\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert new <= set(sys.stdlib_module_names) | {'headrace'}, new"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_cost_is_price_times_seconds_over_an_hour() -> None:
    assert cost(3.825, 3600) == 3.825
    assert cost(3.825, 0) == 0
    assert cost(3.825, 1.19) == pytest.approx(0.001264375)

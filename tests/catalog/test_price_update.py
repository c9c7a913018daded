"""The user's own price list: AWS's price lists in all their forms, what an update changes, and prices that follow."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path

import pytest
from price_lists import PUBLISHED, json_offer, products

from headrace.catalog import prices
from headrace.catalog.prices import (
    changes,
    newest,
    offer_prices,
    price_of,
    product_rows,
    read_price_file,
    regions,
    updated,
    write_list,
)
from headrace.cli.main import invoke
from headrace.errors import UsageError
from headrace.insight import project
from headrace.insight.figures.run_files import PlannedGroup

TODAY = "2026-11-23"
WANTED = {
    ("ml.c5.xlarge", "eu-north-1"): 0.218,
    ("ml.c5.xlarge", "us-east-1"): 0.204,
    ("ml.p4d.24xlarge", "eu-north-1"): 27.0,
    ("ml.p4d.24xlarge", "us-east-1"): 25.251488,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("form", ["json", "api"])
def test_every_form_of_a_price_list_of_aws_gives_the_prices_of_training_and_of_nothing_else(form: str) -> None:
    if form == "api":
        found = newest((row for each in products().values() for row in product_rows(each)), TODAY)
    else:
        found = offer_prices(json_offer(), TODAY)
    assert {(price.instance_type, price.region): price.price for price in found} == WANTED
    source = f"AWS price list AmazonSageMaker 20261116201104, published {PUBLISHED[:10]}, read {TODAY}"
    assert {(price.source, price.as_of, price.status, price.service) for price in found} == {
        (source, "2026-11-01", "published", "sagemaker")
    }


def test_the_users_list_comes_first_from_its_day_on_and_a_process_that_lives_sees_it(home: Path) -> None:
    before = price_of("ml.p4d.24xlarge")
    assert before is not None
    assert (before.price, price_of("ml.p4d.24xlarge", "eu-north-1")) == (37.688, None)
    assert "eu-north-1" not in regions()
    new = offer_prices(json_offer(), TODAY)
    changed = {(each.instance_type, each.region): each.before and each.before.price for each in changes(new)}
    assert changed == {
        ("ml.c5.xlarge", "eu-north-1"): None,
        ("ml.p4d.24xlarge", "eu-north-1"): None,
        ("ml.p4d.24xlarge", "us-east-1"): 37.688,
    }, "an equal price is no change"
    assert not home.exists(), "nothing was written"
    assert write_list(updated(new), TODAY) == home / "prices.csv"
    after = price_of("ml.p4d.24xlarge")
    assert after is not None
    assert (after.price, after.as_of, "read 2026-11-23" in after.source) == (25.251488, "2026-11-01", True)
    assert price_of("ml.p4d.24xlarge", on=date(2026, 10, 31)) == before, "an older run keeps its price"
    assert "eu-north-1" in regions()
    assert not changes(new)
    later = offer_prices(json_offer("2026-12-01T00:00:00Z"), "2026-12-03")
    write_list(updated(later), "2026-12-03")
    assert [price.as_of for price in prices.own_prices() if price.region == "eu-north-1"] == [
        "2026-11-01", "2026-12-01", "2026-11-01", "2026-12-01",
    ]  # fmt: skip
    (home / "prices.csv").unlink()
    assert price_of("ml.p4d.24xlarge") == before


def test_a_table_with_headraces_own_columns_is_read_and_what_is_wrong_in_one_is_named(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    header = ",".join(prices.COLUMNS)
    row = "ml.c5.xlarge,sagemaker,eu-north-1,0.19,published,,2026-11-20,yes,contract 7,own"
    own.write_text(f"# ours\n{header}\n{row}\n")
    (price,) = read_price_file(own, TODAY)
    assert (price.price, price.source) == (0.19, "contract 7")
    wrong: dict[str, str] = {
        f"{header}\n{row.replace('0.19', 'cheap')}\n": "the price 'cheap' is no number",
        f"{header}\n{row.replace('0.19', '-1')}\n": "is not above 0",
        f"{header}\n{row.replace('2026-11-20', 'lately')}\n": "the date 'lately' is none",
        f"{header}\n{row}\n{row}\n": "comes twice",
        "type,price\nml.c5.xlarge,1\n": "the columns instance_type, service, region, status",
        "{": "it is no JSON",
        json_offer(code="AmazonEC2"): "it is the price list of AmazonEC2, not of AmazonSageMaker",
        json_offer().replace("Train:", "Host:"): "has no price of training",
        json_offer().replace('"Hrs"', '"GB-Mo"'): "the unit is 'GB-Mo', not hours",
        '"FormatVersion","v1.0"\n': "it has FormatVersion, v1.0",  # AWS's own table
    }
    for text, said in wrong.items():
        own.write_text(text)
        with pytest.raises(UsageError) as caught:
            read_price_file(own, TODAY)
        assert said in caught.value.message, said
        assert caught.value.hint


def test_a_list_is_the_old_one_or_the_new_one_and_a_broken_one_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = offer_prices(json_offer(), TODAY)
    path = write_list(new, TODAY)
    old = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(UsageError, match="No space left on device"):
            write_list(new[:1], TODAY)
    assert (path.read_bytes(), [each.name for each in home.iterdir()]) == (old, ["prices.csv"])
    path.write_text("nonsense\n")
    with pytest.raises(UsageError, match=r"prices\.csv cannot be read: the columns"):
        price_of("ml.c5.xlarge")


def test_the_command_shows_writes_and_is_taken_by_the_prices_and_a_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    def run(*arguments: str) -> str:
        assert invoke(("prices", *arguments)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    offer = tmp_path / "index.json"
    offer.write_text(json_offer())
    shown = run("update", str(offer), "--dry-run")
    assert ["ml.p4d.24xlarge", "us-east-1", "37.688", "2024", "25.2515", "2026-11-01"] in [
        line.split() for line in shown.splitlines()
    ]
    assert f"4 prices of 2 regions, 3 of them new or other: nothing was changed; it would be written to {home}" in shown
    assert not (home / "prices.csv").exists()
    told = json.loads(run("update", str(offer), "--region", "eu-north-1", "--output", "json"))
    assert (told["prices"], [each["after"]["price"] for each in told["changes"]]) == (2, [0.218, 27.0])
    assert "AWS price list AmazonSageMaker" in run("ml.p4d.24xlarge", "--region", "eu-north-1")
    cost = project([PlannedGroup("dnn", "ml.p4d.24xlarge", ("algo-1", "algo-2"))], 3600, region="eu-north-1")
    assert cost.maximum.value == pytest.approx(54.0)
    assert invoke(("prices", "update", str(offer), "--region", "mars-1")) == 2
    assert "no price of training in mars-1 was found" in capsys.readouterr().err

"""`headrace cost`, `headrace prices` and the money of `headrace plan`, as a user sees them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from command_line import Cli

from headrace.catalog.prices import price_of
from headrace.runs import EventWriter, MetricWriter, Status, Stream, create_run
from headrace.runs.events import HostReleased, InstancesStarted, JobStarted, RunFinished
from loader_seconds import loader_second

GROUPS = [
    {"name": "dnn", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-1"]},
    {"name": "data", "instance_type": "ml.c5.18xlarge", "hosts": ["algo-2"]},
]


@pytest.fixture
def run(cli: Cli) -> str:
    """A run of 100 s; the data host was released after half of it; 1 step of 0.1 s in the training window."""
    paths = create_run("dear", "local", runs=cli.runs)
    hosts = {"dnn": ("algo-1",), "data": ("algo-2",)}
    with EventWriter(paths.events("engine")) as events:
        events.write(InstancesStarted(t=1000.0, hosts=hosts))
        events.write(JobStarted(t=1000.0))
        events.write(HostReleased(t=1050.0, group="data", host="algo-2"))
        events.write(RunFinished(t=1100.0, status=Status.COMPLETED))
    with MetricWriter(paths.metrics(Stream("dnn", "algo-1", "0"))) as metrics:
        for t, epoch in ((1002.0, 0), (1003.0, 0), (1004.0, 1)):
            metrics.write(loader_second(t, epoch=epoch, samples=80))
    (paths.root / "plan.json").write_text(json.dumps({"groups": GROUPS}))
    return paths.id


def test_the_cost_of_a_run_is_a_table_with_formula_price_source_and_date(cli: Cli, run: str) -> None:
    shown = cli("cost", "dear")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0].split() == [run, "1.10", "USD"]
    assert "on the platform, where no instance is released early: 1.15 USD" in lines
    assert ["data", "ml.c5.18xlarge", "1", "3.672", "USD/hour", "50.0", "s", "0.0510", "USD"] in map(str.split, lines)
    assert ["dnn", "ml.p4d.24xlarge", "1", "37.688", "USD/hour", "100.0", "s", "1.05", "USD"] in map(str.split, lines)
    assert any(line.startswith("cost = price * billable_seconds / 3600") for line in lines)
    (price,) = [line for line in lines if line.startswith("price of ml.p4d.24xlarge in us-east-1: 37.688 USD/hour")]
    assert "on-demand, as of 2024, published; source: aws-samples/" in price
    assert "note: the job names no region: prices of us-east-1" in lines


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("host", ["algo-2", "50.0 s", "released early"]),
        ("step", ["a step", "0.00115 USD", "an hour of training", "41.36 USD/hour", "1,000 samples", "0.144 USD"]),
        ("epoch", ["epoch", "2.00 s", "0.0230 USD", "cost_of_epoch = "]),
    ],
)
def test_the_table_is_divided_as_asked(cli: Cli, run: str, by: str, words: list[str]) -> None:
    shown = cli("cost", run, "--by", by).stdout
    for word in words:
        assert word in shown


@pytest.mark.parametrize("kind", ["local", "local_gpu"])
def test_no_command_shows_money_of_a_run_whose_types_were_not_named(
    cli: Cli, run: str, kind: str, job_file: Callable[..., str]
) -> None:
    plan = cli.runs / run / "plan.json"
    plan.write_text(json.dumps({"groups": [{**group, "instance_type": kind} for group in GROUPS]}))
    for words in (*(("cost", run, "--by", by) for by in ("group", "host", "step", "epoch")), ("report", run)):
        shown = cli(*words)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert f"note: {kind} has no list price" in shown.stdout
        assert "USD" not in shown.stdout
        assert "list prices of" not in shown.stdout
    job = job_file("")
    named = cli("plan", job).stdout
    assert "USD" in named
    shown = cli("plan", job, "--set", f"instance_groups[0].type={kind}")
    assert shown.returncode == 0, shown.stderr
    assert "USD" not in shown.stdout


def test_as_json_there_is_all_of_it_and_nothing_else(cli: Cli, run: str) -> None:
    found = json.loads(cli("cost", run, "--region", "us-west-2", "--output", "json").stdout)
    assert found["region"] == "us-west-2"
    assert found["groups"][0]["price"]["rule"] == "us-east-1 x 1"
    assert found["total"]["value"] == pytest.approx((37.688 * 100 + 3.672 * 50) / 3600)
    assert [len(found[part]) for part in ("groups", "hosts", "epochs")] == [2, 2, 2]
    assert set(found["formulas"]) >= {found[name]["name"] for name in ("total", "per_step", "per_epoch", "platform")}


def test_prices_are_listed_with_source_and_date(cli: Cli) -> None:
    shown = cli("prices", "ml.p4d.24xlarge").stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith("ml.")]
    assert [row[:4] for row in rows] == [
        ["ml.p4d.24xlarge", "us-east-1", "37.688", "2024"],
        ["ml.p4d.24xlarge", "us-west-2", "37.688", "2024"],
    ]
    assert "published" in rows[0]
    assert "derived: us-east-1 x 1" in shown
    found = json.loads(cli("prices", "--region", "eu-central-1", "--output", "json").stdout)
    assert len({price["instance_type"] for price in found}) == len(found) > 10
    for price in found:
        known = price_of(price["instance_type"], "eu-central-1")
        assert known is not None
        assert (price["price"], price["licence"]) == (known.price, known.licence)
    assert "3.06" in cli("prices", "c5.18xlarge", "--service", "ec2", "--region", "us-east-1").stdout


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["prices", "ml.p4.24xlarge"], "no price of 'ml.p4.24xlarge' of the service sagemaker is known", "ml.p4d.24xl"),
        (["prices", "qq"], "no price of 'qq'", "headrace prices --service sagemaker lists all"),
        (["prices", "ml.p4d.24xlarge", "--region", "eu-west-1"], "in eu-west-1 is known", "us-east-1, us-west-2"),
        (["prices", "--region", "mars-1"], "no price in 'mars-1' is known; known: ap-northeast-1", "--help"),
        (["cost", "no-such-run"], "no run 'no-such-run'", ""),
        (["cost", "x", "--by", "month"], "'month' is not one of", "--help"),
    ],
)
def test_a_mistake_is_an_error_and_a_hint(cli: Cli, arguments: list[str], error: str, hint: str) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
    assert hint in done.stderr


def test_a_plan_shows_prices_projected_cost_and_budget(cli: Cli, job_file: Callable[..., str]) -> None:
    extra = "stopping_condition: {max_run: 7200}\nbudget: {max_cost: 0.01 USD}\n"
    path = job_file("pass", extra=extra)
    shown = cli("plan", path).stdout
    assert "stops when it has cost 0.0100 USD" in shown
    assert "at most, when all run for all of max_run: 0.230 USD; the budget stops it at 0.0100 USD" in shown
    assert "price of ml.m5.large in us-east-1: 0.115 USD/hour, on-demand, as of 2024, published; source: " in shown
    assert "note: the budget, 0.0100 USD, lasts 313.0 s while all instances run, then the job is stopped" in shown
    found = json.loads(cli("plan", path, "--output", "json").stdout)["cost"]
    assert (found["max_cost"], found["maximum"]["value"]) == (0.01, pytest.approx(0.23))
    assert found["per_hour"]["unit"] == "USD/hour"
    refused = cli("plan", path, "--set", "budget.max_cost=3 GBP")
    assert refused.returncode == 2
    assert "budget.max_cost: must be in USD (got '3 GBP')" in refused.stderr
    assert "hint: " in refused.stderr

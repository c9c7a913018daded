"""A job's budget: how an amount is written, what is refused with file, line and field, and that it goes on its way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from snippets import ONE, TWO

from headrace.errors import Problem
from headrace.job import Job
from headrace.job.json_schema import job_schema

Problems = Callable[..., tuple[Problem, ...]]


def job(**budget: object) -> Job:
    return Job("j", command=["true"], instance_type="ml.c5.xlarge", instance_count=1, budget=budget)


@pytest.mark.parametrize(
    ("written", "amount"),
    [(25, 25.0), (0.01, 0.01), ("25", 25.0), ("25.00 USD", 25.0), ("0.5  USD", 0.5), (1e9, 1e9)],
)
def test_an_amount_is_a_number_or_a_number_and_usd(written: object, amount: float) -> None:
    made = job(max_cost=written)
    assert made.budget is not None
    assert (made.budget.max_cost, made.budget.region) == (amount, "us-east-1")
    again = Job.from_source(made.to_data(), made._source, made.base_path, look=False)
    assert again.budget == made.budget


@pytest.mark.parametrize(
    ("snippet", "field", "words", "hint"),
    [
        ("{max_cost: 25 EUR}", "max_cost", "must be in USD (got '25 EUR')", "max_cost: 25.00 USD"),
        ("{max_cost: -3}", "max_cost", "must be above 0", ""),
        ("{max_cost: 0 USD}", "max_cost", "must be above 0", ""),
        ("{max_cost: .nan}", "max_cost", "must be above 0", ""),
        ("{max_cost: .inf}", "max_cost", "must be above 0", ""),
        ("{max_cost: '-3 USD'}", "max_cost", "must be an amount such as 25 or '25.00 USD'", ""),
        ("{max_cost: $25}", "max_cost", "must be an amount", ""),
        ("{max_cost: 25USD}", "max_cost", "must be an amount", ""),
        ("{max_cost: USD 25}", "max_cost", "must be an amount", ""),
        ("{max_cost: ''}", "max_cost", "must be an amount", ""),
        ("{max_cost: true}", "max_cost", "must be an amount", ""),
        ("{max_cost: [1]}", "max_cost", "must be an amount", ""),
        ("{}", "max_cost", "is required", ""),
        ("{max_cost: 1, region: eu-wst-1}", "region", "must be a region whose prices are known", "'eu-west-1'?"),
        ("{max_cost: 1, region: 3}", "region", "must be a string", ""),
        ("{max_costs: 1}", "max_costs", "did you mean 'max_cost'?", ""),
    ],
)
def test_a_budget_that_is_none_is_refused_at_its_place(
    problems: Problems, snippet: str, field: str, words: str, hint: str
) -> None:
    found = problems(ONE + f"budget: {snippet}")
    problem = next(each for each in found if each.field == f"budget.{field}")
    assert problem.line == 6
    assert words in str(problem)
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("groups", "region", "words", "hint"),
    [
        ("{name: a, type: ml.g6e.xlarge, count: 1}", "us-east-1", "none of ml.g6e.xlarge in us-east-1", "max_run"),
        ("{name: a, type: ml.p4d.24xlarge, count: 1}", "eu-west-1", "none of ml.p4d.24xlarge", "us-east-1, us-west-2"),
        ("{name: a, type: local, count: 1}", "us-east-1", "none of local", "max_run"),
    ],
)
def test_a_budget_needs_a_price_of_every_type(
    problems: Problems, groups: str, region: str, words: str, hint: str
) -> None:
    head = ONE[: ONE.index("instance_")]
    more = "{name: b, type: ml.c5.xlarge, count: 1}"
    text = f"{head}instance_groups: [{groups}, {more}]\nbudget: {{max_cost: 1, region: {region}}}\n"
    (problem,) = problems(text)
    assert problem.field == "budget.max_cost"
    assert words in problem.message
    assert hint in problem.hint
    assert problems(text.replace(f"budget: {{max_cost: 1, region: {region}}}", "")) == ()


def test_a_job_whose_types_have_prices_may_have_a_budget(problems: Problems) -> None:
    assert problems(TWO + "budget: {max_cost: 25.00 USD}") == ()


def test_a_request_has_no_member_for_a_budget_and_says_what_becomes_of_it() -> None:
    assert job(max_cost=1).beyond_request()["budget"] == "headrace's agents stop the job"


def test_the_schema_knows_both_ways_to_write_an_amount() -> None:
    schema = job_schema()["$defs"]["Budget"]
    assert schema["properties"]["max_cost"]["type"] == ["number", "string"]
    assert schema["required"] == ["max_cost"]

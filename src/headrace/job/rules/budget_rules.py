"""The rule of a budget: the cost of an instance type without a price cannot be watched."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.catalog.prices import DEFAULT_REGION, price_of, regions
from headrace.job.problems.finding import Finding
from headrace.job.rules.raw_access import Data, mapping, pick


def budget(data: Data) -> Iterator[Finding]:
    """Every instance type of a job with a budget has a list price in the budget's region."""
    section = mapping(data, "budget")
    region = section.get("region", DEFAULT_REGION)
    if section.get("max_cost") is None or not isinstance(region, str) or region not in regions():
        return
    for name in dict.fromkeys(_types(data)):
        if price_of(name, region) is not None:
            continue
        others = [each for each in regions() if price_of(name, each) is not None]
        hint = f"a price is known in {', '.join(others)}: name that region in budget" if others else ""
        instead = "limit the time with stopping_condition: {max_run: seconds}"
        message = f"needs a list price of every instance type; none of {name} in {region} is known"
        yield Finding(("budget", "max_cost"), message, hint=f"{hint}; or {instead}" if hint else instead)


def _types(data: Data) -> Iterator[str]:
    groups = data.get("instance_groups")
    given = [data.get("instance_type")]
    if isinstance(groups, (list, tuple)):
        given += [pick(group, "instance_type", "type")[1] for group in groups]
    yield from (name for name in given if isinstance(name, str))

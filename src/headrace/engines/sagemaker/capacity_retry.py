"""What is submitted next when the service has no instances for a job: which types, in which region, and when. Pure.

The decisions need nothing but the number of attempts and the service's word for the failure, so any process that looks
at a run takes the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace.errors import JobInvalid
from headrace.job import Job
from headrace.job.job import find_problems
from headrace.job.model.sagemaker_options import CapacityRetry, Elsewhere

LONGEST_DELAY = 600.0  # seconds
_OPTIONS = ("endpoint_url", "endpoint_urls")  # of the engine, and not of the job


class Alternative(NamedTuple):
    """Where a job may run, and on what.

    Attributes:
        region: the region.
        types: instance types that stand in place of the job's, by group; empty for the job's own.
        elsewhere: what of the job is another in this region.
    """

    region: str
    types: Mapping[str, str]
    elsewhere: Elsewhere = Elsewhere()


class NextAttempt(NamedTuple):
    """What is submitted next.

    Attributes:
        attempt: its number; the first submission is 1.
        delay: seconds to wait after the failure.
    """

    attempt: int
    delay: float


def alternatives(retry: CapacityRetry | None, region: str) -> tuple[Alternative, ...]:
    """Returns where a job may run, in order of preference; the job's own region and types first.

    Args:
        retry: what the job says of it.
        region: the job's own region.
    """
    rows: list[Mapping[str, str]] = [{}]
    regions: list[tuple[str, Elsewhere]] = [(region, Elsewhere())]
    if retry is not None:
        rows += _rows(retry.instance_types)
        regions += [(name, other) for name, other in retry.regions.items() if name != region]
    return tuple(Alternative(name, row, other) for name, other in regions for row in rows)


def next_attempt(retry: CapacityRetry | None, attempt: int, reason: str, region: str) -> NextAttempt | None:
    """Returns what follows a submission that the service refused, or a job that it failed; None for nothing.

    Args:
        retry: what the job says of it.
        attempt: the number of the submission that failed, from 1.
        reason: the service's word for it, e.g. ``CapacityError``.
        region: the job's own region.
    """
    if retry is None or attempt > retry.attempts or reason not in retry.on:
        return None
    rounds, place = divmod(attempt, len(alternatives(retry, region)))
    delay = 0.0 if place else min(LONGEST_DELAY, retry.delay * 2 ** (rounds - 1))
    return NextAttempt(attempt + 1, delay)


def alternative_of(retry: CapacityRetry | None, attempt: int, region: str) -> Alternative:
    """Returns where an attempt runs, and on what.

    Args:
        retry: what the job says of it.
        attempt: its number, from 1.
        region: the job's own region.
    """
    every = alternatives(retry, region)
    return every[(attempt - 1) % len(every)]


def job_at(job: Job, place: Alternative) -> Job:
    """Returns the job as it is submitted there.

    Raises:
        JobInvalid: it could not run there: a type without the price that its budget needs, for example.
    """
    groups = [
        group.model_copy(update={"instance_type": place.types[group.instance_group_name]})
        if group.instance_group_name in place.types
        else group
        for group in job.instance_groups
    ]
    changed: dict[str, object] = {"instance_groups": tuple(groups)} if groups and place.types else {}
    if not groups and place.types:
        changed["instance_type"] = place.types[job.groups[0].instance_group_name]
    other = place.elsewhere
    changed |= {name: getattr(other, name) for name in other.model_fields_set - {"inputs", *_OPTIONS}}
    if other.inputs:
        moved = {name: job.inputs[name].model_copy(update={"s3_data": uri}) for name, uri in other.inputs.items()}
        changed["inputs"] = {**job.inputs, **moved}
    if job.budget is not None and job.budget.region != place.region:
        changed["budget"] = job.budget.model_copy(update={"region": place.region})
    if job.sagemaker.region != place.region:
        moved_to = {name: getattr(other, name) for name in _OPTIONS if name in other.model_fields_set}
        options = job.sagemaker.model_copy(update={**moved_to, "region": place.region})
        changed["engines"] = job.engines.model_copy(update={"sagemaker": options})
    if not changed:
        return job
    there = job.model_copy(update=changed)
    wrong = find_problems(there.to_data())
    if wrong:
        raise JobInvalid(tuple(job.problem(each.path, each.message, seen=each.seen, hint=each.hint) for each in wrong))
    return there


def _rows(types: Mapping[str, tuple[str, ...]]) -> Iterator[Mapping[str, str]]:
    """The first type of every group, then the second of every group ...; a shorter list ends with its last type."""
    for number in range(max((len(names) for names in types.values()), default=0)):
        yield {group: names[min(number, len(names) - 1)] for group, names in types.items() if names}

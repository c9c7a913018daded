"""Runs that are the other side of runs here: `headrace serve` plays the service for them, in the same folder."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket, training_job_name
from headrace.engines.ticket import read_ticket
from headrace.runs import Run

_ENGINE = "sagemaker"


def served_runs(runs: Iterable[Run]) -> dict[str, str]:
    """Returns the runs of an endpoint that play the service for another one of these: id to the other one's id."""
    jobs: dict[str, str] = {}  # names of training jobs
    others: list[tuple[str, str]] = []
    for run in runs:
        try:
            header = run.header
            if header.engine != _ENGINE:
                others.append((run.id, header.job_name))
                continue
            ticket = read_ticket(run.paths, ServiceTicket)
        except (OSError, msgspec.DecodeError):  # not submitted yet, or no run that anybody could use
            continue
        names = [ticket.name, *(training_job_name(run.id, attempt) for attempt in range(1, ticket.attempt))]
        jobs.update(dict.fromkeys(names, run.id))
    return {run_id: jobs[name] for run_id, name in others if name in jobs}

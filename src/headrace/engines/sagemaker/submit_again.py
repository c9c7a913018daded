"""Submits a run again that the service refused or failed: by whichever process looks at it when it is time.

Nothing waits: until then the run is pending, and says so.
"""

from __future__ import annotations

import time

import msgspec

from headrace.engines.one_refresher import alone
from headrace.engines.platform_news import platform_news
from headrace.engines.sagemaker.boto_service import BotoService
from headrace.engines.sagemaker.budget_watch import used_up
from headrace.engines.sagemaker.failure_reasons import word_of
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.sagemaker.service_calls import ServiceRefused
from headrace.engines.sagemaker.submit_training_job import (
    asked_of,
    note_refusal,
    pause_before_next,
    planned_again,
    submit_attempt,
)
from headrace.engines.ticket import read_ticket, write_ticket
from headrace.errors import EngineRefused, UsageError
from headrace.runs import Cause, CauseKind, RunPaths, Status
from headrace.runs.events import SecondaryStatus

BY_USER = Cause(CauseKind.STOPPED, "stopped by the user")


def submit_again(paths: RunPaths, ticket: ServiceTicket, word: str, failed_at: float, cost: float = 0.0) -> bool:
    """Submits the next attempt of a run if its job says so and it is time. Returns whether there is one.

    Args:
        paths: the run; this process alone refreshes it.
        ticket: of the attempt that has failed.
        word: the service's word for why.
        failed_at: when it failed, seconds since the epoch.
        cost: what it has cost, in the budget's currency.

    Raises:
        HeadraceError, OSError: it cannot be submitted now; nothing has changed. Files that cannot be used end the run.
    """
    pause = pause_before_next(asked_of(paths), ticket.attempt, word)
    if pause is None:
        return False
    now, number = time.time(), ticket.attempt + 1
    if now < failed_at + pause:
        if ticket.failed != word:
            write_ticket(paths, msgspec.structs.replace(ticket, failed=word))
        with platform_news(paths) as news:
            news.status(SecondaryStatus.PENDING, f"{word}: it is submitted again, with a pause before it", now)
        return True
    planned = planned_again(paths, ticket, number).after(ticket.spent + cost)
    budget = planned.plan.budget
    if budget is not None and budget.before >= budget.max_cost:
        with platform_news(paths) as news:
            return news.end(Status.STOPPED, used_up(budget, budget.before))
    with platform_news(paths) as news:
        news.status(SecondaryStatus.PENDING, f"{word}: submitted again (attempt {number})", now)
    try:
        submit_attempt(planned, paths, kept=True)
    except ServiceRefused as error:
        note_refusal(paths, error)
    except UsageError as error:
        write_ticket(paths, ticket)
        if isinstance(error, EngineRefused):  # the service cannot be asked now
            raise
        with platform_news(paths) as news:
            cause = Cause(CauseKind.ENGINE_FAILED, f"it cannot be submitted again: {error.message}")
            return news.end(Status.FAILED, cause)
    except BaseException:
        write_ticket(paths, ticket)
        raise
    return True


def stop_run(paths: RunPaths) -> bool:
    """Asks the service to stop a run whose end is not known; one that waits for capacity ends here, unasked.

    Returns:
        Whether it was still waiting or running.

    Raises:
        EngineRefused: it cannot be asked.
        OSError: its record cannot be written.
    """
    with alone(paths, wait=True):
        ticket = read_ticket(paths, ServiceTicket)
        word = ticket.refused or ticket.failed
        if not word:
            service = BotoService(ticket.service)
            if service.stop(ticket.name):
                write_ticket(paths, msgspec.structs.replace(ticket, stop=ticket.stop or BY_USER))
                return True
            found = service.describe(ticket.name)
            word = "" if found is None else word_of(found)
        if pause_before_next(asked_of(paths), ticket.attempt, word) is None:
            return False
        with platform_news(paths) as news:
            return news.end(
                Status.STOPPED, Cause(CauseKind.STOPPED, f"{BY_USER.detail} while it waited to be submitted again")
            )

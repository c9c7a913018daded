"""Bad input, and strangers."""

from __future__ import annotations

from fault_deeds import feed_ready, flag, let_end, nothing, programs_run, said, then
from fault_inputs import (
    MANY_HOSTS,
    STRANGE_JOB,
    both_at_once,
    huge,
    in_order,
    one_run,
    second_of_that_name,
    told,
)
from fault_jobs import ELASTIC, FEEDING, MPI_JOB, WAITING
from fault_row import COMPLETED, Row
from fault_strangers import attack, unreachable

REFUSED = {"starts": False, "exit_code": 2, "cause": ""}

INPUT = [
    Row("strange hyperparameters", STRANGE_JOB, nothing, **COMPLETED, limit=20, after=(told,), soak=True),
    Row(
        "a job file of 10 MB: one value",
        WAITING.having(**huge("value")),
        nothing,
        **REFUSED,
        after=(said("error: "), said("must have at most 4 MB")),
        soak=True,
    ),
    Row(
        "a job file of 10 MB: many keys",
        WAITING.having(**huge("keys")),
        nothing,
        **REFUSED,
        after=(said("error: "),),
        soak=True,
    ),
    Row("a second job of that name", WAITING, second_of_that_name, **COMPLETED, limit=20, after=(one_run,), soak=True),
    Row("two jobs of one name at once", WAITING, both_at_once, **COMPLETED, limit=20, after=(one_run,), soak=True),
    Row(
        "10 hosts are in order of their numbers",
        MANY_HOSTS,
        nothing,
        **COMPLETED,
        limit=60,
        after=(in_order,),
        soak=True,
    ),
    Row(
        "strangers at a job with data workers",
        FEEDING,
        then(feed_ready, attack, let_end),
        **COMPLETED,
        soak=True,
    ),
    Row(
        "strangers reach nothing of isolated hosts",
        WAITING.isolated(),
        then(programs_run(2), unreachable, let_end),
        **COMPLETED,
        soak=True,
    ),
    Row(
        "strangers at an MPI job",
        MPI_JOB,
        then(programs_run(4), attack, let_end, flag("leave")),
        **COMPLETED,
        soak=True,
    ),
    Row(
        "strangers at a torchrun job",
        ELASTIC,
        then(programs_run(2), attack, let_end),
        **COMPLETED,
        limit=20,
        soak=True,
    ),
]

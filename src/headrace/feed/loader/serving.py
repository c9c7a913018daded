"""What a loader tells its workers: the pipeline that they open, and the name of its job."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

from headrace.feed.identifiers import PipelineNumber
from headrace.feed.pipelines import factory
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.fetch import Built, stack_arrays
from headrace.feed.wire import messages

JOB_VARIABLE = "HEADRACE_FEED_JOB"
MAX_JOB = 128  # characters
PIPELINE = PipelineNumber(1)  # a session has one


def opening_here(name: str, lanes: int, ranks: int, *, batched: bool) -> messages.Open:
    """Returns how local workers open the pipeline that they are given as an object."""
    return messages.Open(PIPELINE, "", {}, "", "", batched, name, lanes=lanes, ranks=ranks)


def opening_by_name(
    of: Built, init: Callable[[int], None] | None, name: str, plan: str, lanes: int, ranks: int
) -> messages.Open:
    """Returns how feed servers open a pipeline.

    Args:
        of: the pipeline, which is not built here, and the user's `collate_fn`.
        init: `worker_init_fn`.
        name: of the loader.
        plan: plan fingerprint.
        lanes, ranks: see `messages.Open`.

    Raises:
        PipelineError: a function has no importable name.
    """
    named: Pipeline[Any] = of.dataset
    stacked = of.default_collate and of.collate is not stack_arrays
    collate = "" if stacked else factory.function_name(of.collate, "collate_fn")
    begin = factory.function_name(init, "worker_init_fn") if init else ""
    return messages.Open(
        PIPELINE, named.factory, named.arguments, collate, begin, of.batched, name, plan,
        lanes=lanes, job=job_of(plan), opener=secrets.token_hex(8), ranks=ranks,
    )  # fmt: skip


def job_of(plan: str) -> str:
    """Returns the name of this job among those that share a feed server; all its ranks must find the same.

    It is HEADRACE_FEED_JOB, or else where the ranks of torchrun meet; a process without ranks is a job of its own.

    Args:
        plan: plan fingerprint, empty where nothing is divided among ranks.
    """
    named = os.environ.get(JOB_VARIABLE, "")
    if named:
        return named[:MAX_JOB]
    meeting = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    given = not os.environ.get("RANK") and meeting[1] == os.environ.get("SM_MASTER_PORT")  # to all, as on SageMaker
    if all(meeting) and not given:
        return ":".join(meeting)[:MAX_JOB]
    return "" if plan else f"{socket.gethostname()[:64]}:{os.getpid()}"

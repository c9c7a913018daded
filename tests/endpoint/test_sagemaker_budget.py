"""`--engine sagemaker` and a budget: the leader stops the job, and so does whoever looks when the leader does not."""

from __future__ import annotations

import pytest
from effort import SOAK
from sagemaker_loop import Loop, agent_inside, container_host, lines

from headrace.runs import CauseKind, Status
from serve_process import wait_for

pytestmark = pytest.mark.namespaces

SCRIPT = """
import time
print("runs", flush=True)
time.sleep(600)
"""
EXPENSIVE = {"instance_groups": None, "instance_type": "ml.p4d.24xlarge", "instance_count": 1}
"""About 0.01 USD a second."""
SERVE_OPTIONS = ("--set", "engines.local.stop_grace=3")


def test_the_leader_stops_a_job_whose_budget_is_used_up_while_nobody_looks(loop: Loop) -> None:
    handle = loop.start(loop.job(SCRIPT, "spends", budget={"max_cost": 0.04}, **EXPENSIVE))
    loop.service.ended(loop.service.client(), handle.id)  # the process that has submitted it might be gone
    assert handle.wait(60) is Status.STOPPED
    assert handle.cause is not None
    assert (handle.cause.kind, handle.exit_code) == (CauseKind.BUDGET, 4), handle.cause
    assert all(part.end is not None and part.end >= part.start for part in handle.run.state().transitions)


if SOAK:

    def test_whoever_looks_stops_a_job_whose_budget_is_used_up_when_its_leader_does_not(loop: Loop) -> None:
        handle = loop.start(loop.job(SCRIPT, "hangs", budget={"max_cost": 0.08}, **EXPENSIVE))
        wait_for(lambda: any(line.endswith("runs") for line in lines(handle)) or handle.run.finished)
        frozen = [agent_inside("algo-1"), container_host()]
        for process in frozen:
            process.suspend()
        assert handle.wait(120) is Status.STOPPED
        assert handle.cause is not None
        assert (handle.cause.kind, handle.exit_code) == (CauseKind.BUDGET, 4), handle.cause

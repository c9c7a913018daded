"""What one host makes of its orders, whatever comes first."""

from __future__ import annotations

import asyncio

import pytest
from agent_plans import make_plan, scripts

from headrace.agent.host import HostAgent
from headrace.agent.hostprograms import HostPrograms
from headrace.agent.messages import Orders, StopOrder


@pytest.mark.parametrize("stopped", [False, True])
def test_a_host_that_is_ending_starts_no_programs_any_more(tmp_path, monkeypatch, stopped) -> None:
    begun: list[str] = []
    monkeypatch.setattr(HostPrograms, "start", lambda _, spec: begun.append(spec.stream))
    plan = make_plan(scripts("dnn", "algo-1", "algo-2"), base=tmp_path, environment={"CUDA_VISIBLE_DEVICES": ""})

    async def run() -> None:
        agent = HostAgent(plan, "algo-2", b"secret", lifeline=False)
        if stopped:  # by its platform, and the coordinator does not know yet
            agent.stop(StopOrder("the agent got SIGTERM", 1.0, feed=True))
        agent.obey(Orders(start=True))
        for task in agent._tasks:  # before it ends what descends from this process
            task.cancel()
        await asyncio.gather(*agent._tasks, return_exceptions=True)

    asyncio.run(run())
    assert begun == ([] if stopped else ["0"])

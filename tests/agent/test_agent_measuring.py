"""What a host writes of itself, and when it stops."""

from __future__ import annotations

import asyncio

from agent_plans import make_plan, scripts

from headrace.agent.metrics import sampler
from headrace.agent.metrics.counters import Activity
from headrace.agent.metrics.sampler import HostSampler
from headrace.runs import EventWriter, Run, RunPaths


def test_nothing_is_written_after_the_last_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sampler, "INTERVAL", 0.01)
    plan = make_plan(scripts("dnn", "algo-1"), environment={"CUDA_VISIBLE_DEVICES": ""})
    run = Run(RunPaths(tmp_path))

    def records() -> int:
        return sum(len(found) for found in run.host_seconds().values())

    async def host() -> None:
        made = HostSampler(plan, "algo-1", run.paths, Activity(), EventWriter(run.paths.events("algo-1")))
        task = asyncio.ensure_future(made.run())
        while records() < 3:
            await asyncio.sleep(0.01)
        made.close()  # its programs have ended, and the other hosts take their leave
        last = records()
        await asyncio.wait_for(task, 5)
        assert records() == last

    asyncio.run(asyncio.wait_for(host(), 20))

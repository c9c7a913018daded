"""What one host makes of its orders, whatever comes first."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from agent_plans import make_plan, scripts

from headrace.agent.control.control_messages import Heartbeat, HostLeaving, Orders, StopOrder
from headrace.agent.host.programs import HostPrograms
from headrace.agent.host_agent import HostAgent
from headrace.engines.planning.host_certificates import make_certificates
from headrace.instance.launch_plan import TfDataPlan, write_certificates
from headrace.instance.lifeline import OF_PLATFORM
from headrace.runs.metric_records import HostSecond

CERTIFICATES = make_certificates("run", ["algo-1", "algo-2"])


@pytest.fixture(autouse=True)
def certificates(tmp_path: Path) -> None:
    for host, made in CERTIFICATES.items():
        (tmp_path / host / "input/data/headrace").mkdir(parents=True)
        write_certificates(tmp_path / host, made)


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


@pytest.mark.parametrize("of_platform", [False, True])
def test_a_signal_to_an_agent_is_its_platforms_doing_where_the_engine_says_so(
    tmp_path, monkeypatch, of_platform
) -> None:
    if of_platform:
        monkeypatch.setenv(OF_PLATFORM, "1")
    plan = make_plan(scripts("dnn", "algo-1", "algo-2"), base=tmp_path)
    said = []

    async def run() -> None:
        agent = HostAgent(plan, "algo-1", b"secret", lifeline=True)
        monkeypatch.setattr(agent._client, "report", said.append)
        agent._signalled(signal.SIGTERM)
        for task in agent._tasks:  # before it ends what descends from this process
            task.cancel()
        await asyncio.gather(*agent._tasks, return_exceptions=True)

    asyncio.run(run())
    assert said == [HostLeaving("SIGTERM", platform=of_platform)]


def test_a_heartbeat_tells_when_the_host_last_worked_and_last_sent_data_where_a_stall_may_be_judged(
    tmp_path, monkeypatch
) -> None:
    def second(t: float, cpu: float) -> HostSecond:
        return HostSecond(t=t, cpu=cpu, cores=1, rss=1, processes=1)

    async def run() -> tuple[list[Heartbeat], Heartbeat]:
        plan = make_plan(scripts("dnn", "algo-1", "algo-2"), base=tmp_path, tf_data=TfDataPlan(("dnn",)))
        agent = HostAgent(plan, "algo-2", b"secret", lifeline=False)
        now = [1e9]
        monkeypatch.setattr(agent._context.activity, "_clock", lambda: now[0])
        agent._context.activity.used(second(0, 0.0))
        agent._context.activity.used(second(1, 1.0))
        beats = []
        for sent in (5, 5, 6):
            now[0] += 10
            agent._services._servers["tf-worker-0"]._take(b'{"event": "alive", "sent": %d}' % sent)
            beats.append(agent._heartbeat())
        return beats, HostAgent(make_plan(scripts("dnn", "algo-1", "algo-2"), base=tmp_path), "algo-2", b"secret",
                                lifeline=False)._heartbeat()  # fmt: skip

    beats, other = asyncio.run(run())
    assert [(beat.idle, beat.unsent) for beat in beats] == [(10, 0), (20, 10), (30, 0)]
    assert other == Heartbeat()

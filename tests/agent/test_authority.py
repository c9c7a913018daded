"""The authority as a thread: whom it waits for when its job has ended."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from agent_plans import make_plan, scripts

from agent_connection import connect
from headrace.agent.control.control_messages import Hello, HostEnded, ProgramsEnded, Report
from headrace.agent.coordinator.authority import Authority
from headrace.engines.planning.host_certificates import make_certificates
from headrace.instance.lifeline import AgentGone, StopJob
from headrace.runs import EventWriter, Status


def test_at_the_end_it_stays_for_the_last_agent_that_it_has_not_given_up(tmp_path: Path) -> None:
    """One that is slow still gets the verdict; one that is lost may stand still for ever."""
    hosts = ("algo-1", "algo-2")
    tls = make_certificates("run", hosts)
    plan = make_plan(scripts("dnn", *hosts), prefix=f"127.{178 + os.getpid() % 50}.8")
    authority = Authority(plan, EventWriter(tmp_path / "events.jsonl"), tls["algo-1"])
    authority.start()
    at = f"{plan.coordinator_address}:{plan.ports.control}"

    async def run() -> None:
        mine, other = (connect(at, "algo-1", tls[host], host.encode() * 3) for host in hosts)
        async with mine as slow, other as lost:
            await lost.send(Report(1, Hello("dnn")))
            await slow.send(Report(1, Hello("dnn")))
            await slow.receive()
            authority.command(AgentGone("algo-2", "it was killed", False, ()))
            authority.command(StopJob("stopped", "stopped by the user", False, 0.0, False))
            for number, message in enumerate((ProgramsEnded(), HostEnded()), 2):
                await slow.send(Report(number, message))
            while authority.verdict is None:
                await asyncio.sleep(0.01)
            closing = threading.Thread(target=authority.close)
            closing.start()
            await asyncio.to_thread(closing.join, 0.3)
            assert closing.is_alive()
            while (await slow.receive()).verdict is not Status.FAILED:
                pass
            slow._stream.abort()
            await asyncio.to_thread(closing.join, 5)
            assert not closing.is_alive(), "it does not wait for the one that is lost"

    asyncio.run(run())

"""An agent keeps its line to the coordinator, through broken connections, and gives up in time."""

import asyncio
import itertools
import os
import time

import pytest

from headrace.agent.control import control_client as client_module
from headrace.agent.control.control_client import Client, CoordinatorLost
from headrace.agent.control.control_messages import ExecutorLost, Heartbeat, Hello, Orders, Ready
from headrace.agent.control.control_transport import ControlServer
from headrace.engines.planning.host_certificates import make_certificates
from headrace.instance.launch_plan import HostPlan
from headrace.runs import Cause, CauseKind

TLS = make_certificates("run", ["algo-1"])["algo-1"]
PORT = 7071
_numbers = itertools.count(1)


class Desk:
    """A coordinator's desk that takes reports in order, once each."""

    def __init__(self):
        self.taken = []
        self.all = []

    def connected(self, host):
        pass

    def disconnected(self, host):
        pass

    def receive(self, host, report):
        self.all.append(report.message)
        if report.number == len(self.taken) + 1:
            self.taken.append(report.message)

    def orders(self, host):
        return Orders(ack=len(self.taken))


def make_client(at, start_timeout=20.0, orders=None):
    return Client(
        leader=HostPlan("algo-1", "dnn", at.partition(":")[0], "", ""),
        address=at,
        tls=TLS,
        start_timeout=start_timeout,
        obey=(orders if orders is not None else []).append,
    )


def address():
    return f"127.{178 + os.getpid() % 50}.8.{next(_numbers)}:{PORT}"


def serve(desk, at):
    server = ControlServer(TLS, print)
    server.start(at)
    server.begin(1, desk, asyncio.sleep(60))
    return server


async def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def connected():
    """An agent whose greeting has reached its coordinator."""
    at = address()
    server = serve(Desk(), at)
    client = make_client(at)
    client.report(Hello("dnn"))
    task = asyncio.ensure_future(client.run())
    await until(lambda: client.delivered)
    return server, client, task


async def end(task):
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.2)


def test_the_coordinator_may_come_after_the_agent():
    async def scene():
        at, desk = address(), Desk()
        client = make_client(at)
        client.report(Hello("dnn"))
        task = asyncio.ensure_future(client.run())
        await asyncio.sleep(0.3)  # the agent has been refused a few times by now
        server = serve(desk, at)
        await until(lambda: client.delivered)
        assert desk.taken == [Hello("dnn")]
        await end(task)
        server.close()

    asyncio.run(scene())


def test_reports_survive_a_broken_connection_once_and_in_order():
    async def scene():
        at, desk = address(), Desk()
        client = make_client(at)
        client.report(Hello("dnn"))
        task = asyncio.ensure_future(client.run())
        server = serve(desk, at)
        await until(lambda: client.delivered)
        server.close()
        messages = [ExecutorLost(number, Cause(CauseKind.PROGRAM_EXITED, signal=9), True) for number in range(5)]
        for message in messages:
            client.report(message)
        server = serve(desk, at)
        await until(lambda: client.delivered)
        assert desk.taken == [Hello("dnn"), *messages]
        await end(task)
        server.close()

    asyncio.run(scene())


def test_heartbeats_go_out_when_there_is_no_news(monkeypatch):
    monkeypatch.setattr(client_module, "HEARTBEAT", 0.02)

    async def scene():
        at, desk = address(), Desk()
        server = serve(desk, at)
        orders = []
        task = asyncio.ensure_future(make_client(at, orders=orders).run())
        await until(lambda: desk.all.count(Heartbeat()) > 5 and len(orders) > 5)
        await end(task)
        server.close()

    asyncio.run(scene())


def test_a_coordinator_that_never_comes_is_named():
    async def scene():
        with pytest.raises(CoordinatorLost, match=r"coordinator on dnn/algo-1 .* did not answer within 0\.5 s"):
            await asyncio.wait_for(make_client(address(), start_timeout=0.5).run(), 20)

    asyncio.run(scene())


def test_while_an_agent_does_not_run_itself_the_coordinator_is_not_silent(monkeypatch):
    monkeypatch.setattr(client_module, "SILENCE_LIMIT", 0.6)
    monkeypatch.setattr(client_module, "COUNTED", 0.3)

    async def scene():
        server, client, task = await connected()
        time.sleep(1.5)  # this end is stopped, as SIGSTOP, `scontrol suspend` and a file system that stalls do
        client.report(Ready())
        await until(lambda: client.delivered or task.done())
        assert not task.done(), task.exception()
        await end(task)
        server.close()

    asyncio.run(scene())


def test_a_coordinator_that_falls_silent_is_lost(monkeypatch):
    monkeypatch.setattr(client_module, "SILENCE_LIMIT", 0.6)

    async def scene():
        server, _, task = await connected()
        server.close()
        with pytest.raises(CoordinatorLost, match=r"silent for 0\.6 s"):
            await asyncio.wait_for(task, 20)

    asyncio.run(scene())

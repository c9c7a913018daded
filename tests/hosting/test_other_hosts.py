"""The leader's end of the talk between supervisors: what a host was told of, it is told."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machines_of_a_run import Machines, groups, job

from headrace.agent.control.control_messages import Supervising
from headrace.agent.control.control_messages import encode as encode_opening
from headrace.agent.control.control_transport import ControlServer, open_stream
from headrace.hosting.machines.machine_link import HostReport, OtherHosts, decode_order, encode
from headrace.instance.launch_plan import read_certificates
from patience import until


def serve(made: Machines, wake: Callable[[], object]) -> ControlServer:
    """The port of the leader's supervisor."""
    others = OtherHosts(made.plan, made.leader.paths, wake)
    server = ControlServer(read_certificates(made.leader.tree), print, others.answer)
    server.start(f"{made.plan.host('algo-1').address}:{made.plan.ports.control}")
    return server


def send(made: Machines, *reports: bytes) -> list[bytes]:
    """Says that as algo-2, over one connection. Returns the answers."""
    address = f"{made.plan.host('algo-1').address}:{made.plan.ports.control}"

    async def ask() -> list[bytes]:
        answers = []
        async with open_stream(address, "algo-1", read_certificates(made["algo-2"].tree)) as stream:
            await stream.send(encode_opening(Supervising()))
            for report in reports:
                await stream.send(report)
                answers.append(await asyncio.wait_for(stream.receive(), 20))
        return answers

    return asyncio.run(ask())


def test_a_report_that_has_come_is_answered_although_the_leader_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the answer to its last report a host would not know that the leader has everything."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    prefix = f"127.{80 + os.getpid() % 20}.1"
    made = Machines(tmp_path, job(tmp_path, "", instance_groups=groups(dnn=2)), prefix)
    came, go = threading.Event(), threading.Event()

    def hold() -> None:
        came.set()
        go.wait(20)

    server = serve(made, hold)
    address = (made.plan.host("algo-1").address, made.plan.ports.control)

    def closed() -> bool:
        try:
            socket.create_server(address).close()
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        report = encode(HostReport(os.urandom(16), 1, more=True))
        answer = pool.submit(send, made, report)
        assert came.wait(20)
        closing = pool.submit(server.close)
        until(closed, what="the port is closed")
        go.set()
        assert decode_order(answer.result()[0]).attempt == 1
        closing.result()


def test_hosts_that_have_nothing_new_to_say_do_not_wake_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 idle hosts report 400 times a second."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    prefix = f"127.{80 + os.getpid() % 20}.3"
    made = Machines(tmp_path, job(tmp_path, "", instance_groups=groups(dnn=2)), prefix)
    woken: list[bool] = []
    server = serve(made, lambda: woken.append(True))
    process, numbers = os.urandom(16), itertools.count(1)

    def says(**fields: object) -> bytes:
        report = encode(HostReport(process, next(numbers), more=True, **fields))
        return decode_order(send(made, report)[0]).leader

    leader = says(asks_sizes=True)
    for _ in range(3):
        says(leader=leader)
    before = len(woken)
    for _ in range(5):
        says(leader=leader)
    assert len(woken) == before
    says(leader=leader, prepared=1)
    assert len(woken) == before + 1
    says(leader=leader, delivered=True)
    assert len(woken) == before + 2
    server.close()

"""The leader's end of the talk between supervisors: what a host was told of, it is told."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machines_of_a_run import Machines, groups, job, until

from headrace.agent.control.control_messages import WHOLE_RUN, Direction, Link
from headrace.hosting.machines.machine_messages import METHOD, HostReport, decode_order, encode
from headrace.hosting.machines.machine_server import MachineServer
from headrace.instance.launch_plan import read_secret

import grpc  # isort: skip  (grpc_transport sets its variables first)


def test_a_report_that_has_come_is_answered_although_the_leader_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the answer to its last report a host would not know that the leader has everything."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    prefix = f"127.{80 + os.getpid() % 20}.1"
    made = Machines(tmp_path, job(tmp_path, "", instance_groups=groups(dnn=2)), prefix)
    secret = read_secret(made.leader.tree)
    came, go = threading.Event(), threading.Event()

    def hold() -> None:
        came.set()
        go.wait(20)

    server = MachineServer(made.plan, made.leader.paths, secret, None, hold)
    server.start()
    address = (made.plan.host("algo-1").address, made.plan.ports.supervisor)
    link = Link(secret, Direction.FROM_HOST, "algo-2", os.urandom(16), WHOLE_RUN)

    def closed() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(address) != 0

    with ThreadPoolExecutor(2) as pool, grpc.insecure_channel(f"{address[0]}:{address[1]}") as channel:
        report = link.seal(encode(HostReport(os.urandom(16), more=True)))
        answer = pool.submit(channel.unary_unary(METHOD), report, timeout=20)
        assert came.wait(20)
        closing = pool.submit(server.close)
        until(closed, what="the port is closed")
        go.set()
        assert decode_order(link.open(answer.result())).attempt == 1
        closing.result()


def test_hosts_that_have_nothing_new_to_say_do_not_wake_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 idle hosts report 400 times a second."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    prefix = f"127.{80 + os.getpid() % 20}.3"
    made = Machines(tmp_path, job(tmp_path, "", instance_groups=groups(dnn=2)), prefix)
    secret, woken = read_secret(made.leader.tree), []
    server = MachineServer(made.plan, made.leader.paths, secret, None, lambda: woken.append(True))
    server.start()
    link = Link(secret, Direction.FROM_HOST, "algo-2", os.urandom(16), WHOLE_RUN)
    process = os.urandom(16)
    with grpc.insecure_channel(f"{made.plan.host('algo-1').address}:{made.plan.ports.supervisor}") as channel:
        call = channel.unary_unary(METHOD)

        def says(**fields: object) -> bytes:
            report = encode(HostReport(process, more=True, **fields))
            return decode_order(link.open(call(link.seal(report), timeout=20))).leader

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

"""The port of the leader's supervisor: who does not know the secret, or repeats what was said, changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines_of_a_run import Machines, groups, job

from headrace.agent.control.control_messages import WHOLE_RUN, Direction, Link
from headrace.agent.control.grpc_transport import COMMAND_METHOD
from headrace.hosting.machines.machine_messages import METHOD, HostReport, TreePiece, decode_order, encode
from headrace.hosting.machines.machine_server import MachineServer
from headrace.instance.launch_plan import read_secret
from headrace.runs.segments import Piece

import grpc  # isort: skip  (grpc_transport sets its variables first)


class Port:
    """A leader's port, and what is sent to it as a host."""

    def __init__(self, made: Machines, server: MachineServer, channel: grpc.Channel) -> None:
        self.root = made.leader.paths.root
        self.server = server
        self.secret = read_secret(made.leader.tree)
        self.process = os.urandom(16)
        self._channel = channel

    def link(self, secret: bytes | None = None, host: str = "algo-2") -> Link:
        return Link(secret or self.secret, Direction.FROM_HOST, host, os.urandom(16), WHOLE_RUN)

    def send(self, data: bytes, method: str = METHOD) -> bytes:
        return self._channel.unary_unary(method)(data, timeout=20)

    def refuses(self, data: bytes, method: str = METHOD) -> bool:
        with pytest.raises(grpc.RpcError) as caught:
            self.send(data, method)
        return caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

    def greet(self, link: Link) -> bytes:
        """Says hello. Returns the leader's process, without which nothing counts."""
        report = HostReport(self.process, more=True)
        return decode_order(link.open(self.send(link.seal(encode(report))))).leader

    def report(self, leader: bytes, **fields: object) -> bytes:
        return encode(HostReport(self.process, leader, more=True, **fields))


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    made = Machines(tmp_path, job(tmp_path, "", instance_groups=groups(dnn=2)), f"127.{80 + os.getpid() % 20}.2")
    server = MachineServer(made.plan, made.leader.paths, read_secret(made.leader.tree), None, lambda: None)
    server.start()
    try:
        with grpc.insecure_channel(f"{made.plan.host('algo-1').address}:{made.plan.ports.supervisor}") as channel:
            yield Port(made, server, channel)
    finally:
        server.close()


def test_what_is_not_sealed_with_the_secret_is_refused(port: Port) -> None:
    assert port.refuses(b"junk")
    assert port.refuses(port.link(os.urandom(32)).seal(port.report(b"")))
    assert port.refuses(port.link(host="algo-9").seal(port.report(b"")))
    assert port.refuses(port.link(host="algo-1").seal(port.report(b""))), "the leader itself"
    assert port.refuses(port.link(os.urandom(32)).seal(b"{}"), COMMAND_METHOD)
    assert port.server.commands() == []
    assert port.server.hosts["algo-2"].report is None


def test_what_was_said_before_is_refused(port: Port) -> None:
    link = port.link()
    leader = port.greet(link)
    first = link.seal(port.report(leader, prepared=1))
    port.send(first)
    assert port.refuses(first)
    later = port.link()
    port.greet(later)
    assert port.refuses(link.seal(port.report(leader, prepared=2))), "of a connection that has ended"
    known = port.server.hosts["algo-2"].report
    assert known is not None
    assert known.prepared == 1


def test_what_was_said_to_another_leader_is_not_taken(port: Port) -> None:
    link = port.link()
    piece = (Piece("logs/dnn/algo-2/0.log", 5, 0), b"early")
    answer = link.open(port.send(link.seal(port.report(os.urandom(16), pieces=(piece,), delivered=True))))
    assert not decode_order(answer).taken
    assert not (port.root / "logs").exists()


@pytest.mark.parametrize(
    "carried",
    [
        lambda: {"pieces": ((Piece("events/engine.jsonl", 2, 0), b"{}"),)},
        lambda: {"pieces": ((Piece("logs/dnn/algo-1/0.log", 2, 0), b"no"),)},
        lambda: {"pieces": ((Piece("../run.json", 2, 0), b"no"),)},
        lambda: {"tree": (TreePiece(b"code/train.py", "file", data=b"no"),)},
    ],
)
def test_a_host_writes_its_own_files_and_no_others(port: Port, carried: Callable[[], dict[str, object]]) -> None:
    link = port.link()
    leader = port.greet(link)
    before = sorted(path for path in Path(port.root).rglob("*") if path.is_file())
    assert port.refuses(link.seal(port.report(leader, **carried())))
    assert sorted(path for path in Path(port.root).rglob("*") if path.is_file()) == before

"""The port of the leader's supervisor: who is no other host of the run, or late with what he says, changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines_of_a_run import Machines, groups, job

from headrace.agent.control.control_messages import SUPERVISOR_LIMIT, Supervising
from headrace.agent.control.control_messages import encode as encode_opening
from headrace.agent.control.control_transport import ControlServer, open_stream
from headrace.engines.planning.host_certificates import make_certificates
from headrace.hosting.machines.machine_link import HostReport, OtherHosts, TreePiece, decode_order, encode
from headrace.instance.launch_plan import Certificates, read_certificates
from headrace.runs.segments import Piece


class Port:
    """A leader's port, and what is sent to it as a host."""

    def __init__(self, made: Machines, others: OtherHosts) -> None:
        self.root = made.leader.paths.root
        self.others = others
        self.process = os.urandom(16)
        self.tls = {name: read_certificates(made[name].tree) for name in ("algo-1", "algo-2")}
        self._address = f"{made.plan.host('algo-1').address}:{made.plan.ports.control}"
        self._numbers = itertools.count(1)

    def send(self, data: bytes, tls: Certificates | None = None) -> bytes:
        async def ask() -> bytes:
            own = tls or self.tls["algo-2"]
            async with open_stream(self._address, "algo-1", own, limit=SUPERVISOR_LIMIT) as stream:
                await stream.send(encode_opening(Supervising()))
                await stream.send(data)
                return await asyncio.wait_for(stream.receive(), 20)

        return asyncio.run(ask())

    def refuses(self, data: bytes, tls: Certificates | None = None) -> bool:
        with pytest.raises(ConnectionError):
            self.send(data, tls)
        return True

    def greet(self) -> bytes:
        """Says hello. Returns the leader's process, without which nothing counts."""
        return decode_order(self.send(self.report(b""))).leader

    def report(self, leader: bytes, **fields: object) -> bytes:
        """The next report."""
        return encode(HostReport(self.process, next(self._numbers), leader, more=True, **fields))


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    made = Machines(tmp_path, job(tmp_path, "", instance_groups=groups(dnn=2)), f"127.{80 + os.getpid() % 20}.2")
    others = OtherHosts(made.plan, made.leader.paths, lambda: None)
    server = ControlServer(read_certificates(made.leader.tree), print, others.answer)
    server.start(f"{made.plan.host('algo-1').address}:{made.plan.ports.control}")
    try:
        yield Port(made, others)
    finally:
        server.close()


@pytest.mark.promise("security", "a handshake with coordinator or supervisor takes a certificate of the run")
def test_who_has_no_certificate_of_another_host_of_the_run_is_refused(port: Port) -> None:
    assert port.refuses(b"junk")
    assert port.refuses(b"{}")
    assert port.refuses(port.report(b""), port.tls["algo-1"]), "the leader itself"
    assert port.others.hosts["algo-2"].report is None
    other = make_certificates("another-run", ["algo-2"])["algo-2"]
    assert port.refuses(port.report(b""), dataclasses.replace(other, ca=port.tls["algo-2"].ca)), "the handshake fails"
    assert port.others.hosts["algo-2"].report is None


def test_a_report_that_comes_late_is_refused(port: Port) -> None:
    leader = port.greet()
    late, first = (port.report(leader, prepared=prepared) for prepared in (2, 1))
    port.send(first)
    assert port.refuses(first)
    assert port.refuses(late)
    report = port.others.hosts["algo-2"].report
    assert report is not None
    assert report.prepared == 1


def test_a_supervisor_whose_machine_was_replaced_is_not_heard_any_more(port: Port) -> None:
    leader = port.greet()
    before = port.process
    port.process = os.urandom(16)
    port.send(port.report(leader, prepared=1))
    now, port.process = port.process, before
    assert port.refuses(port.report(leader, prepared=2))
    port.process = now
    port.send(port.report(leader))
    report = port.others.hosts["algo-2"].report
    assert report is not None
    assert report.process == now


def test_what_was_said_to_another_leader_is_not_taken(port: Port) -> None:
    piece = (Piece("logs/dnn/algo-2/0.log", 5, 0), b"early")
    answer = port.send(port.report(os.urandom(16), pieces=(piece,), delivered=True))
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
    leader = port.greet()
    before = sorted(path for path in Path(port.root).rglob("*") if path.is_file())
    assert port.refuses(port.report(leader, **carried()))
    assert sorted(path for path in Path(port.root).rglob("*") if path.is_file()) == before

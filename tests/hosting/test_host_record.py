"""The record of a host on its way to the leader, when machines at both ends are lost, or a disk has trouble."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines_of_a_run import Machines, groups, job

from headrace.agent.control.control_transport import ControlServer
from headrace.hosting.helpers.store_record import RecordOrder, order_of, write_order
from headrace.hosting.machines.host_record import RecordSender, bring_record, end_lines, sizes_of, take
from headrace.hosting.machines.machine_link import MachineClient, OtherHosts
from headrace.instance.launch_plan import read_certificates
from headrace.instance.storage import Store
from headrace.runs import RunPaths
from headrace.runs.record_pieces import PieceMissing
from headrace.runs.segment_writer import SegmentWriter
from headrace.runs.segments import COUNT, Piece
from objectstore import ObjectStore
from patience import until

LOG = "logs/dnn/algo-2/0.log"


def machine(folder: Path, *lines: str) -> RunPaths:
    paths = RunPaths(folder)
    paths.engine.mkdir(parents=True)
    (folder / LOG).parent.mkdir(parents=True)
    (folder / LOG).write_text("".join(f"{line}\n" for line in lines))
    return paths


def send(sender: RecordSender, leader: RunPaths) -> None:
    """Sends all, as the client does; what is missing is asked for again, but not for ever."""
    for _ in range(5):
        if sender.asks_sizes:
            sender.learn(sizes_of(leader, "algo-2"))
        try:
            more = True
            while more:
                batch, more = sender.next(last=False)
                for piece, data in batch:
                    take(leader, "algo-2", piece, data)
            return
        except PieceMissing:
            sender.forget()
    raise AssertionError("bytes are missing for ever")


def test_a_leader_without_the_end_of_what_a_lost_machine_wrote_still_gets_all_of_the_next_machine(
    tmp_path: Path,
) -> None:
    leader = RunPaths(tmp_path / "leader")
    leader.root.mkdir()
    send(RecordSender(machine(tmp_path / "first", "one", "two"), "algo-2"), leader)
    end_lines(leader, "algo-2")
    second = machine(tmp_path / "second", "three")
    send(RecordSender(second, "algo-2"), leader)
    assert (leader.root / LOG).read_text() == "one\ntwo\nthree\n"

    restored = RunPaths(tmp_path / "restored")  # its store had less
    (restored.root / LOG).parent.mkdir(parents=True)
    (restored.root / LOG).write_text("one\n")
    again = RecordSender(second, "algo-2")
    send(again, restored)
    with (second.root / LOG).open("a") as log:
        log.write("four\n")
    again.forget()
    send(again, restored)
    assert (restored.root / LOG).read_text() == "one\nthree\nfour\n"


class BadDisk(RecordSender):
    """The host's disk has trouble for a moment."""

    failed = 0

    def next(self, last: bool) -> tuple[tuple[tuple[Piece, bytes], ...], bool]:
        if not self.failed:
            self.failed += 1
            raise OSError(5, "Input/output error")
        return super().next(last)


def test_a_disk_that_fails_for_a_moment_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> Iterator[object]:
        yield from ()

    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    prefix = f"127.{80 + os.getpid() % 20}.2"
    made = Machines(tmp_path, job(tmp_path, "", instance_groups=groups(dnn=2)), prefix)
    host = made["algo-2"]
    (host.paths.root / LOG).parent.mkdir(parents=True)
    (host.paths.root / LOG).write_text("one\n")
    others = OtherHosts(made.plan, made.leader.paths, lambda: None)
    server = ControlServer(read_certificates(made.leader.tree), print, others.answer)
    address = f"{made.plan.host('algo-1').address}:{made.plan.ports.control}"
    server.start(address)
    record = BadDisk(host.paths, "algo-2")
    client = MachineClient("algo-1", address, read_certificates(host.tree), record, nothing, lambda: None)
    client.start()
    try:
        there = made.leader.paths.root / LOG
        until(lambda: there.is_file() and there.read_text() == "one\n", what="the record")
        assert record.failed == 1
    finally:
        client.close()
        server.close()


@pytest.mark.s3
def test_the_record_of_a_long_run_is_brought_back_with_few_requests(
    tmp_path: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = COUNT + 20
    first, second = machine(tmp_path / "first" / "run-1"), machine(tmp_path / "second" / "run-1")
    shutil.rmtree(second.root / "logs")
    for paths in (first, second):
        write_order(paths, RecordOrder(s3.uri("runs"), 1.0))
    with Store() as store:
        place = order_of(first).place
        writer = SegmentWriter(first, store, place, order_of(first).writer, tmp_path / "state.json")
        for number in range(count):
            with (first.root / LOG).open("a") as log:
                log.write(f"{number}\n")
            assert writer.store() == 1
    read: list[str] = []
    before = Store.read
    monkeypatch.setattr(Store, "read", lambda self, uri: read.append(uri) or before(self, uri))
    bring_record(second)
    assert (second.root / LOG).read_text() == (first.root / LOG).read_text()
    assert len(read) < count / 2
    read.clear()
    with Store() as store:  # the one that goes on storing it
        writer = SegmentWriter(second, store, place, order_of(second).writer, tmp_path / "state-2.json")
        assert writer.store() == 0
    assert len(read) < count / 2

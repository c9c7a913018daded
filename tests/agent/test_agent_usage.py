"""What a host uses: the family of processes, the kernel's counters, and what looking costs."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_plans import make_plan, scripts

import headrace.processes.process_table as family_module
from headrace.agent.metrics.counters import Activity, DiskBytes, has_network, memory_file, network_bytes, used_memory
from headrace.agent.metrics.sampler import HostSampler
from headrace.instance.launch_plan import NAMESPACE, Isolation
from headrace.instance.paths import BASE_VARIABLE
from headrace.processes.oom import FD_VARIABLE
from headrace.processes.process_table import Process, ProcessTree, descendants, look
from headrace.runs import EventWriter, HostSecond, MetricWriter, RunPaths

TREE = r"""
import os, sys, threading, time
for _ in range({threads}):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
for _ in range({children}):
    if os.fork() == 0:
        os.setsid()
        os.write(1, b"up\n")
        time.sleep(600)
        os._exit(0)
os.write(1, b"up\n")
for line in sys.stdin:
    if line.strip() == "fork":
        if os.fork() == 0:
            os.write(1, b"up\n")
            time.sleep(600)
    else:
        break
"""


class Tree:
    """A process with children, as one of a host."""

    def __init__(self, children: int = 0, threads: int = 0) -> None:
        code = TREE.format(children=children, threads=threads)
        pipe = subprocess.PIPE
        self.head = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
        self.await_up(children + 1)

    def await_up(self, count: int = 1) -> None:
        assert self.head.stdout is not None
        for _ in range(count):
            assert self.head.stdout.readline() == "up\n"

    def fork(self) -> None:
        assert self.head.stdin is not None
        self.head.stdin.write("fork\n")
        self.head.stdin.flush()
        self.await_up()

    def close(self) -> None:
        for process in descendants(self.head.pid):
            os.kill(process.pid, 9)
        self.head.kill()
        self.head.wait()
        for pipe in (self.head.stdin, self.head.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def tree():
    trees: list[Tree] = []

    def make(**numbers: int) -> Tree:
        trees.append(Tree(**numbers))
        return trees[-1]

    yield make
    for each in trees:
        each.close()


def pids(found: list[Process]) -> set[int]:
    return {process.pid for process in found}


def test_a_look_finds_the_same_as_a_walk_when_processes_come_and_go(tree) -> None:
    first = tree(children=2)
    family = ProcessTree(first.head.pid)
    for _ in range(3):
        assert pids(family.look()) == {first.head.pid} | pids(descendants(first.head.pid))
        first.fork()
    gone = descendants(first.head.pid)[-1]
    descriptor = os.pidfd_open(gone.pid)
    os.kill(gone.pid, 9)
    assert select.select([descriptor], [], [], 10)[0]
    os.close(descriptor)
    found = {process.pid: process.state for process in family.look()}
    assert found[gone.pid] == "Z"  # a zombie until its parent takes it in
    assert len(found) == 6


def test_another_family_is_never_taken_for_this_one_and_is_looked_at_once(tree, monkeypatch) -> None:
    mine, other = tree(children=1), tree(children=1)
    family = ProcessTree(mine.head.pid)
    family.look()
    looked: list[int] = []
    monkeypatch.setattr(family_module, "look", lambda pid: looked.append(pid) or look(pid))
    stranger = tree()
    for _ in range(3):
        assert stranger.head.pid not in pids(family.look())
    assert looked.count(stranger.head.pid) == 1
    assert other.head.pid not in looked
    assert set(looked) >= {mine.head.pid}


class Machine:
    """A process table that the test writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table: dict[int, tuple[int, int]] = {}  # pid: (parent, start)
        monkeypatch.setattr(family_module, "pids", lambda: list(self.table))
        monkeypatch.setattr(family_module, "look", self.look)
        monkeypatch.setattr(family_module, "descendants", self.walk)

    def look(self, pid: int) -> Process | None:
        if pid not in self.table:
            return None
        parent, start = self.table[pid]
        return Process(pid, parent, start, "S", 1, 1)

    def walk(self, root: int) -> list[Process]:
        return descendants(root, [self.look(pid) for pid in self.table])


def test_a_pid_that_was_used_again_is_another_process(monkeypatch) -> None:
    machine = Machine(monkeypatch)
    machine.table = {1: (0, 1), 10: (1, 5), 11: (10, 6), 12: (1, 7)}
    family = ProcessTree(10)
    assert pids(family.look()) == {10, 11}
    machine.table[11] = (1, 9)  # a member's pid, now of a stranger
    machine.table[13] = (12, 9)
    assert pids(family.look()) == {10}
    machine.table[11] = (10, 12)  # and back
    assert 11 in pids(family.look()) | pids(family.look())
    machine.table[12] = (10, 20)  # a stranger's pid, now of a member: found by the next walk
    monkeypatch.setattr(family_module, "REWALK", 1)
    assert pids(family.look()) == {10, 11, 12, 13}


def test_an_orphan_that_is_between_two_parents_is_found_at_the_next_look(monkeypatch) -> None:
    machine = Machine(monkeypatch)
    machine.table = {1: (0, 1), 10: (1, 5)}
    family = ProcessTree(10)
    family.look()
    machine.table |= {30: (20, 8), 31: (30, 9)}  # 20 was born and died between two looks
    assert pids(family.look()) == {10}
    machine.table[30] = (10, 8)  # adopted
    assert pids(family.look()) == {10, 30, 31}


NET = """Inter-|   Receive                                      |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 9999999  1 0 0 0 0 0 0  9999999  1 0 0 0 0 0 0
  eth0:    1000 10 0 0 0 0 0 0     2000 20 0 0 0 0 0 0
ib0:7 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
"""


def test_network_bytes_are_of_all_devices_but_loopback(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    table.write_text(NET)
    assert network_bytes(str(table)) == (1007, 2005)
    assert len(network_bytes()) == 2  # the real table can be read


@pytest.mark.parametrize(
    ("prefix", "isolation", "own"),
    [
        ("127.0.1", Isolation(), False),
        ("127.0.1", Isolation(NAMESPACE), True),
        ("10.0.0", Isolation(), True),
        ("node", Isolation(), True),
    ],
)
def test_a_loopback_address_of_a_shared_machine_is_no_network_of_its_own(prefix, isolation, own) -> None:
    assert has_network(make_plan(scripts("g", "algo-1"), prefix=prefix, isolation=isolation), "algo-1") is own


def io_of(folder: Path, pid: str, read: int, written: int) -> None:
    (folder / pid).mkdir(exist_ok=True)
    calls = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\n"
    (folder / pid / "io").write_text(f"{calls}read_bytes: {read}\nwrite_bytes: {written}\ncancelled_write_bytes: 0\n")


def process(pid: int) -> Process:
    return Process(pid, 1, 1, "S", 0, 0)


def test_disk_bytes_are_added_up_and_never_go_back(tmp_path: Path, logged) -> None:
    for pid, read, written in (("self", 0, 0), ("7", 100, 10), ("8", 50, 5)):
        io_of(tmp_path, pid, read, written)
    disk = DiskBytes(str(tmp_path))
    assert disk.read([process(7), process(8), process(9)]) == (150, 15)
    assert disk.read([process(7)]) == (150, 15)  # 8 has ended, and its parent does not have its bytes yet
    io_of(tmp_path, "7", 300, 30)
    assert disk.read([process(7)]) == (300, 30)
    assert logged() == []


def test_a_kernel_that_counts_no_disk_bytes_is_told_once_and_there_is_no_figure(tmp_path: Path, logged) -> None:
    disk = DiskBytes(str(tmp_path))
    assert disk.read([process(7)]) is None
    assert disk.read([process(7)]) is None
    assert len(logged()) == 1
    assert "does not count" in logged()[0]


def test_a_process_that_may_not_be_looked_into_is_told_once(tmp_path: Path, monkeypatch, logged) -> None:
    io_of(tmp_path, "self", 0, 0)
    disk = DiskBytes(str(tmp_path))

    def refuse(path: str) -> bytes:
        raise PermissionError(13, "no", path)

    monkeypatch.setattr("headrace.agent.metrics.counters.read_proc", refuse)
    assert disk.read([process(7)]) == disk.read([process(8)]) == (0, 0)
    assert len(logged()) == 1
    assert "without process 7" in logged()[0]


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("cache 9\nrss 1\nshmem 2\ntotal_cache 900\ntotal_rss 100\ntotal_shmem 20\n", 120),  # v1
        ("anon 100\nfile 900\nkernel 5\nshmem 30\n", 130),  # v2
    ],
)
def test_memory_in_use_is_without_the_cache_of_files(text: str, used: int, tmp_path: Path, monkeypatch) -> None:
    counter, stat = tmp_path / "memory.oom_control", tmp_path / "memory.stat"
    counter.write_text("oom_kill 0\n")
    descriptor = os.open(counter, os.O_RDONLY)
    monkeypatch.setenv(FD_VARIABLE, str(descriptor))
    try:
        assert memory_file() is None
        stat.write_text(text)
        assert memory_file() == stat
        assert used_memory(stat) == used
    finally:
        os.close(descriptor)
    monkeypatch.delenv(FD_VARIABLE)
    assert memory_file() is None


class Kept(MetricWriter):
    """Keeps what is written."""

    def __init__(self) -> None:
        self.found: list[HostSecond] = []

    def write(self, metric: object) -> bool:
        assert isinstance(metric, HostSecond)
        self.found.append(metric)
        return True


@pytest.mark.promise("metrics", "measuring costs less than 0.5 % of a core")
def test_a_sample_has_every_figure_and_costs_far_less_than_half_a_percent_of_a_core(
    tree, tmp_path: Path, logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        tree(children=4, threads=20)
    monkeypatch.setenv(BASE_VARIABLE, str(tmp_path))
    writer = Kept()
    plan = make_plan(scripts("g", "algo-1"), base=tmp_path, prefix="10.1.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    paths = RunPaths(tmp_path)
    sampler = HostSampler(plan, "algo-1", paths, Activity(), EventWriter(paths.events("algo-1")))
    sampler._writer = writer
    sampler.sample()
    began = time.process_time()
    for _ in range(50):
        sampler.sample()
    spent = (time.process_time() - began) / 50
    last = writer.found[-1]
    assert last.processes >= 21
    assert last.cpu >= writer.found[0].cpu > 0
    assert last.memory == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert last.received is not None
    assert last.written is not None
    assert last.gpus == ()
    assert last.used is None
    df = subprocess.run(["df", "--output=pcent", str(tmp_path)], capture_output=True, text=True, check=True)
    assert last.disk == pytest.approx(float(df.stdout.split()[-1].rstrip("%")), abs=1.5), "df rounds up"
    assert logged() == []
    assert spent < 0.005, f"{1000 * spent:.1f} ms a second"  # half a percent of a core; 0.6 ms when this was written

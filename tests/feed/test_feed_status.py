"""What a feed server tells of itself: its sums, its rates, its clients; and how many cores it plans for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feed_data
import pytest
from feed_servers import Server, ask, wait_until

from headrace.control_group import granted_cores, usable_cores
from headrace.feed import DataLoader
from headrace.feed.identifiers import PipelineNumber
from headrace.feed.worker.work_queue import WINDOW, SliceRate, WorkQueue


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("status"), "host-own")
    yield started.wait_ready()
    started.stop()


@pytest.mark.parametrize("by", ["tcp", "unix_address"])
def test_a_server_tells_who_uses_it_and_what_it_made(by: str, server: Server) -> None:
    with DataLoader(
        feed_data.noise(64, rows=1000), batch_size=8, seed=1, name="mine",
        workers=getattr(server, by), secret_file=str(server.secret),
    ) as loader:  # fmt: skip
        batches = list(loader)
        status = ask(server, getattr(server, by))
        [client] = status.clients
        assert client.name.startswith("mine loader of rank 0 (")
        assert (client.rank, client.world_size, client.local) == (0, 1, by == "unix_address")
        assert status.slices == sum(executor.slices for executor in status.executors) >= len(batches)
        assert status.bytes >= sum(batch[0].nbytes for batch in batches)
        assert status.cpu_seconds > 0
        assert status.slices_per_second > 0
        assert status.bytes_per_second > 0
        assert status.numerics["cpu_capability"], "as the executors tell it, not the server"
    wait_until(lambda: not ask(server).clients, "the client is forgotten")


def test_a_server_at_work_tells_busy_executors_and_its_queue(server: Server) -> None:
    with DataLoader(
        feed_data.hanging(), batch_size=7, seed=1, prefetch_factor=8, workers=server.tcp, secret_file=str(server.secret)
    ) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: any(each.busy for each in ask(server).executors), "an executor hangs over index 13")
        assert loader.stats()["steps"] == 0


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    tally = SliceRate(100.0)
    for second in range(100):
        for _ in range(5):
            tally.add(100.0 + second, 1000, 0.01)
    assert (tally.slices, tally.bytes) == (500, 500_000)
    assert tally.cpu_seconds == pytest.approx(5.0)
    slices, size = tally.rates(199.9)
    assert slices == pytest.approx(5.0, rel=0.2)
    assert size == pytest.approx(5000.0, rel=0.2)
    assert tally.rates(199.0 + WINDOW + 0.1) == (0.0, 0.0)


def test_rates_of_a_young_server_are_over_its_life() -> None:
    tally = SliceRate(0.0)
    tally.add(1.5, 10, 0.0)
    tally.add(2.0, 10, 0.0)
    assert tally.rates(2.0) == (1.0, 10.0)
    assert SliceRate(0.0).rates(0.0) == (0.0, 0.0)


def test_jobs_over_which_no_executor_has_ended_have_no_restart_budget() -> None:
    idle: Any = None
    queue = WorkQueue(idle, idle, 1 << 20, idle)
    assert [queue._refusal((f"job {number}", PipelineNumber(number))) for number in range(100)] == [""] * 100
    assert not queue._charged


def cgroup(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, CORES),
        ("0::/a/b\n", {"a/b/cpu.max": "100000 100000", "a/cpu.max": "max 100000"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/../../host/path\n", {"cpu.max": "100000 100000"}, 1),
        ("4:cpu,cpuacct:/gone\n2:memory:/m\n", {"cpu/cpu.cfs_quota_us": "9999", "cpu/cpu.cfs_period_us": "9999"}, 1),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, CORES),
        ("3:cpuset:/x\n", {"cpu/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"}, CORES),
        ("0::/a\n", {"a/cpu.max": "nonsense"}, CORES),
    ],
)  # fmt: skip
def test_a_cgroups_quota_bounds_the_cores(
    membership: str, files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "membership").write_text(membership)
    assert usable_cores(cgroup(tmp_path / "cgroup", files), tmp_path / "membership") == expected


def test_a_part_of_a_core_counts_as_a_part_where_cores_are_not_counted_whole(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/a/b\n")
    mount = cgroup(tmp_path / "cgroup", {"a/cpu.max": "75000 100000", "a/b/cpu.max": "max 100000"})
    assert granted_cores(mount, tmp_path / "membership") == 0.75
    assert usable_cores(mount, tmp_path / "membership") == 1


def test_without_cgroups_the_cpu_set_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "none") == CORES

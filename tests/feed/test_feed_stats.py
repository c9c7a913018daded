"""`DataLoader.stats()`: rates, CPU time and hosts, with real workers."""

from __future__ import annotations

from collections.abc import Callable

import feed_data
import pytest
import torch
from feed_servers import Pair

from headrace.feed import DataLoader


@pytest.mark.parametrize("place", ["local", "unix", "two tcp"])
def test_figures_follow_from_what_was_loaded(place: str, loader_at: Callable[..., DataLoader]) -> None:
    with loader_at(place, feed_data.noise(), seed=1, memory=64 << 20) as loader:
        size = 0
        for batch in loader:
            size += sum(part.nbytes for part in (batch[0], batch[1], batch[2]["np"], batch[2]["py"]))
            assert loader.stats()["queue_depth"] >= 0
        stats = loader.stats()
        assert (stats["steps"], stats["samples"], stats["bytes"]) == (12, 96, size)
        assert stats["bytes_per_second"] == pytest.approx(size / stats["step_seconds"])
        assert stats["worker_cpu_seconds_per_gb"] == pytest.approx(stats["worker_cpu_seconds"] / size * 1e9)
        assert stats["cpu_seconds_per_gb"] > 0
        assert sum(host["rows"] for host in stats["hosts"].values()) >= 96
        for name, host in stats["hosts"].items():
            assert name in ("worker 0", "worker 1", "host-a", "host-b")
            assert host["rows_per_second"] == pytest.approx(host["rows"] / host["seconds"])


def test_sparse_tensors_which_have_no_bytes_are_counted_as_none() -> None:
    for sparse, size in ((torch.eye(3).to_sparse(), 0), (torch.eye(3).to_mkldnn(), 36)):
        loader = DataLoader([sparse] * 4, 2, collate_fn=list)
        assert [len(batch) for batch in loader] == [2, 2]
        assert loader.stats()["bytes"] == 4 * size


def test_ready_batches_are_the_queue(loader_at: Callable[..., DataLoader]) -> None:
    with loader_at("local", feed_data.noise(), batch_size=4, prefetch_factor=3) as loader:
        batches = iter(loader)
        depth = 0
        while depth == 0:
            next(batches)  # the test's own time limit is the deadline
            depth = loader.stats()["queue_depth"]
        assert 0 < depth <= 24
        assert len(list(batches)) > 0
    assert loader.stats()["queue_depth"] == 0


def test_the_receivers_cpu_time_is_kept_when_it_ends(pair: Pair) -> None:
    loader = DataLoader(feed_data.big(), 4, workers=pair.a.tcp, secret_file=pair.secret)
    while loader._stats.receiver_cpu_seconds + sum(each.receiver_cpu_seconds for each in loader._sessions) < 0.02:
        list(loader)
    loader.close()
    assert loader._stats.receiver_cpu_seconds >= 0.02
    assert loader.stats()["cpu_seconds_per_gb"] >= 0.02 / loader.stats()["bytes"] * 1e9


def test_work_in_this_process_costs_its_own_time() -> None:
    with DataLoader(feed_data.busy(16), 8) as loader:
        list(loader)
        stats = loader.stats()
        assert stats["cpu_seconds_per_gb"] * stats["bytes"] / 1e9 >= 16 * 0.012
        assert stats["hosts"] == {}

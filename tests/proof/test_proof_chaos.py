"""Whatever is killed or stopped, whenever: the trainer gets every batch once, in order, bit-identical, and goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import PREFETCH, WIDE_WINDOW, Chaos
from effort import SOAK, number, repeat
from feed_servers import Server, wait_until
from training import feed_hosts, remote, training


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Server]]:
    """Two feed servers, of two executors each, that may be killed and started again."""
    with feed_hosts(tmp_path) as started:
        yield started


if SOAK:  # in every run: those of a mixture of streams, and executors of hosts

    def test_local_workers_are_killed_and_stopped(tmp_path: Path, seed: int) -> None:
        loader = {"workers": "local", "num_workers": 3}
        with training(tmp_path, loader=loader, endless=True, dataset={"delay": 0.001}) as trainer:
            chaos = Chaos(seed, trainer, window=WIDE_WINDOW)
            for _ in repeat(0.12):
                chaos.run(number(3, 6))
                assert set(chaos.done) == set(chaos.faults)
            trainer.finish()


if SOAK:  # in every run: those of a mixture of streams, which has lanes

    def test_workers_of_lanes_are_killed_and_stopped(tmp_path: Path, seed: int) -> None:
        loader = {"workers": "local", "num_workers": 3, "num_shards": 7, "persistent_workers": True}
        with training(tmp_path, loader=loader, pipeline="lanes", endless=True, n=900) as trainer:
            chaos = Chaos(seed, trainer, window=WIDE_WINDOW)
            for _ in repeat(0.06):
                chaos.run(number(2, 4))
            assert trainer.finish()["workers_lost"] >= 1


if SOAK:  # in every run: tests/feed/test_feed_auto.py

    def test_workers_are_killed_while_a_loader_chooses_how_many_there_are(tmp_path: Path, seed: int) -> None:
        loader = {"workers": "local", "num_workers": "auto", "persistent_workers": True}
        with training(tmp_path, loader=loader, endless=True, dataset={"delay": 0.01}) as trainer:
            chance, chaos = random.Random(seed), Chaos(seed, trainer)
            for _ in repeat(0.03, 2):
                wait_until(lambda: len(trainer.local_executors()) > 1, "the loader has added workers")
                trainer.wait_steps(chance.randrange(1, 40))
                chaos.kill(chance.choice(trainer.local_executors()))
            stats = trainer.finish()
        assert stats["workers_lost"] >= 1
        assert stats["tuning"]["changes"], stats["tuning"]


@pytest.mark.promise("feed-packing", "packing: resume is exact at every step, a killed worker costs nothing")
@pytest.mark.parametrize("method", ["best_fit", *(["concat"] if SOAK else [])])
def test_workers_that_pack_documents_are_killed(method: str, tmp_path: Path, seed: int) -> None:
    loader = {"workers": "local", "num_workers": 2, "num_shards": 5, "persistent_workers": True, "batch_size": 2}
    dataset = {"method": method, "delay": 0.001}
    with training(tmp_path, loader=loader, pipeline="packed", endless=True, n=400, dataset=dataset) as trainer:
        chance, chaos = random.Random(seed), Chaos(seed, trainer)
        for _ in repeat(0.03, 3):
            trainer.wait_steps(chance.randrange(1, 12))
            chaos.kill(chance.choice(trainer.local_executors()))
        assert trainer.finish()["workers_lost"] >= 1


if SOAK:

    def test_hosts_of_lanes_are_killed_and_stopped(hosts: list[Server], tmp_path: Path, seed: int) -> None:
        loader = remote(hosts) | PREFETCH | {"num_shards": 8}
        with training(tmp_path, loader=loader, pipeline="lanes", endless=True, n=900) as trainer:
            chaos = Chaos(seed, trainer, hosts)
            for _ in repeat(0.06):
                chaos.run(7)
            assert trainer.finish()["workers_lost"] >= 1

    @pytest.mark.parametrize("method", ["best_fit", "concat"])
    def test_hosts_that_pack_documents_are_killed_and_stopped(
        method: str, hosts: list[Server], tmp_path: Path, seed: int
    ) -> None:
        loader = remote(hosts) | PREFETCH | {"num_shards": 8, "batch_size": 2}
        data = {"method": method, "delay": 0.001}
        with training(tmp_path, loader=loader, pipeline="packed", endless=True, n=600, dataset=data) as trainer:
            chaos = Chaos(seed, trainer, hosts)
            for _ in repeat(0.03):
                chaos.run(7)
            assert trainer.finish()["workers_lost"] >= 1


@pytest.mark.promise("feed", "the same bits, whichever worker or data host is killed")
def test_executors_receiver_and_whole_hosts_are_killed_and_stopped(
    hosts: list[Server], tmp_path: Path, seed: int
) -> None:
    data = {"delay": 0.002, "words": bool(seed % 2)}  # batches made of rows, or whole
    with training(tmp_path, loader=remote(hosts) | PREFETCH, endless=True, dataset=data) as trainer:
        chaos = Chaos(seed, trainer, hosts)
        for _ in repeat(0.12):
            chaos.run(7)
            assert set(chaos.done) == set(chaos.faults)
        counters = trainer.finish()
        assert counters["workers_lost"] >= 1
        assert counters["retries"] >= 1

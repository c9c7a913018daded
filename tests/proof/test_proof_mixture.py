"""A mixture in the audit: a trainer gets what a plain loop takes of three datasets, whatever dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import PREFETCH, Chaos
from effort import SOAK, number, repeat
from training import feed_hosts, remote, training

N = 240
WINDOW = {"window": [8, 4]}


if SOAK:  # in every run: those of streams

    @pytest.mark.promise(
        "feed-mixtures", "a mixture has of every source what its weight says, to a sample; resume is exact"
    )
    def test_workers_of_a_mixture_are_killed_and_stopped(tmp_path: Path, seed: int) -> None:
        loader = {"workers": "local", "num_workers": 3} | PREFETCH | WINDOW
        data = {"delay": 0.001}
        with training(tmp_path, loader=loader, pipeline="mixture", n=N, endless=True, dataset=data) as trainer:
            chaos = Chaos(seed, trainer)
            for _ in repeat(0.06):
                chaos.run(number(2, 6))
            trainer.finish()


@pytest.mark.promise("feed-mixtures", "mixtures of streams: the shares are exact in every lane, resume at every step")
def test_workers_of_a_mixture_of_streams_are_killed_and_stopped(tmp_path: Path, seed: int) -> None:
    loader = {"workers": "local", "num_workers": 3, "num_shards": 5, "persistent_workers": True} | PREFETCH
    data = {"delay": 0.001}
    with training(tmp_path, loader=loader, pipeline="mixed_lanes", n=60, endless=True, dataset=data) as trainer:
        chaos = Chaos(seed, trainer)
        for _ in repeat(0.06):
            chaos.run(number(2, 6))
        counters = trainer.finish()
        assert counters["workers_lost"] >= 1
        assert {name: told["weight"] for name, told in counters["sources"].items()} == {"a": 0.5, "b": 0.2, "c": 0.3}


if SOAK:

    def test_hosts_of_a_mixture_of_streams_and_their_workers_are_killed(tmp_path: Path, seed: int) -> None:
        with feed_hosts(tmp_path) as hosts:
            loader, data = remote(hosts) | PREFETCH | {"num_shards": 8}, {"delay": 0.002}
            with training(tmp_path, loader=loader, pipeline="mixed_lanes", n=90, endless=True, dataset=data) as trainer:
                chaos = Chaos(seed, trainer, hosts)
                for _ in repeat(0.06):
                    chaos.run(7)
                assert trainer.finish()["workers_lost"] >= 1

    def test_hosts_of_a_mixture_and_their_workers_are_killed(tmp_path: Path, seed: int) -> None:
        with feed_hosts(tmp_path) as hosts:
            loader = remote(hosts) | PREFETCH
            data = {"delay": 0.002}
            with training(tmp_path, loader=loader, pipeline="mixture", n=N, endless=True, dataset=data) as trainer:
                chaos = Chaos(seed, trainer, hosts)
                for _ in repeat(0.06):
                    chaos.run(number(3, 7))
                trainer.finish()

"""Tar shards in the audit: a trainer gets what a loop gets that reads them with the standard library, whatever dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited_data import write_tars
from chaos import PREFETCH, WIDE_WINDOW, Chaos
from effort import SOAK, number, repeat
from training import feed_hosts, remote, training

N = 240
WINDOW = {"window": [8, 4]}


@pytest.fixture
def shards(tmp_path: Path) -> str:
    return str(write_tars(tmp_path / "shards", N))


@pytest.mark.promise("feed-formats", "rows of tar shards come once, in order, with the same bits, whoever is killed")
@pytest.mark.parametrize("window", [*([{}] if SOAK else []), WINDOW])
def test_a_trainer_gets_the_rows_that_the_standard_library_reads(window: dict, shards: str, tmp_path: Path) -> None:
    loader = {"num_workers": 2, "workers": "local"} | window
    with training(tmp_path, loader=loader, pipeline="tars", n=N, dataset={"folder": shards}, epochs=2) as trainer:
        trainer.finish()
        assert trainer.steps == 60


if SOAK:  # in every run: those of hosts

    def test_workers_are_killed_and_stopped_in_the_middle_of_shards(shards: str, tmp_path: Path, seed: int) -> None:
        loader = {"workers": "local", "num_workers": 3} | WINDOW
        data = {"folder": shards, "delay": 0.001}
        with training(tmp_path, loader=loader, pipeline="tars", n=N, endless=True, dataset=data) as trainer:
            chaos = Chaos(seed, trainer, window=WIDE_WINDOW)
            for _ in repeat(0.06):
                chaos.run(number(3, 6))
            trainer.finish()


if SOAK:  # hosts are killed in every run of test_proof_chaos.py

    @pytest.mark.promise(
        "feed-formats", "rows of tar shards come once, in order, with the same bits, whoever is killed"
    )
    def test_hosts_and_their_workers_are_killed_in_the_middle_of_shards(shards: str, tmp_path: Path, seed: int) -> None:
        data = {"folder": shards, "delay": 0.002}
        with feed_hosts(tmp_path) as hosts:
            loader = remote(hosts) | PREFETCH | WINDOW
            with training(tmp_path, loader=loader, pipeline="tars", n=N, endless=True, dataset=data) as trainer:
                chaos = Chaos(seed, trainer, hosts)
                for _ in repeat(0.06):
                    chaos.run(number(3, 7))
                trainer.finish()

"""The two things that exactly-once rests on, each alone: what a lost worker owed is made elsewhere, a second answer is
dropped. `test_proof_mutants` runs these tests against builds without them, where they must fail.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from chaos import PREFETCH, WINDOW
from feed_servers import wait_until
from training import training

DATA = {"delay": 0.005}


def test_what_killed_workers_owed_is_made_by_others(tmp_path: Path) -> None:
    loader = {"workers": "local", "num_workers": 2} | PREFETCH
    with training(tmp_path, loader=loader, endless=True, dataset=DATA) as trainer:
        for _ in range(3):
            trainer.wait_steps(WINDOW)
            wait_until(lambda: len(trainer.local_executors()) == 2, "both workers are there")
            os.kill(trainer.local_executors()[0].pid, signal.SIGKILL)
        counters = trainer.finish()
        assert counters["retries"] >= 1


@pytest.mark.promise("feed-guarantees", "a second answer counts for nothing")
def test_an_answer_that_comes_twice_counts_once(tmp_path: Path) -> None:
    loader = {"workers": "local", "num_workers": 2, "worker_init_fn": "answer_twice"} | PREFETCH
    with training(tmp_path, loader=loader, epochs=2, dataset=DATA) as trainer:
        counters = trainer.finish()
        assert counters["duplicates_dropped"] >= 20

"""Without any fault, what the trainer gets is what the plain loop gets: the audit itself works."""

from __future__ import annotations

from pathlib import Path

import audit
import numpy as np
import pytest
import torch
from effort import SOAK
from training import feed_hosts, remote, training


@pytest.mark.parametrize(("workers", "words"), [(2, True), *([(0, False)] if SOAK else [])])
def test_a_trainer_gets_the_plain_loop_s_batches_over_two_epochs(workers: int, words: bool, tmp_path: Path) -> None:
    loader = {"num_workers": workers, "workers": "local"}
    with training(tmp_path, loader=loader, n=61, dataset={"words": words, "delay": 0.0}, epochs=2) as trainer:
        trainer.finish()
        assert trainer.steps == 16


if SOAK:  # in every run: those of a mixture, killed

    def test_a_trainer_gets_the_plain_loop_s_lanes_over_two_epochs(tmp_path: Path) -> None:
        loader = {"num_workers": 2, "workers": "local", "num_shards": 5}
        with training(tmp_path, loader=loader, pipeline="lanes", n=300, dataset={"delay": 0.0}, epochs=2) as trainer:
            trainer.finish()
            assert trainer.steps > 40


@pytest.mark.promise("feed", "every sample of an epoch comes exactly once over all ranks")
@pytest.mark.promise("sagemaker-differences", "absent here: data is lost, doubled or in another order each time")
def test_two_ranks_get_the_plain_loop_s_batches_from_one_host(tmp_path: Path) -> None:
    shared = {"batch_size": 1, "global_batch_size": 12, "world_size": 2}
    with (
        feed_hosts(tmp_path, 1) as hosts,
        training(tmp_path, loader=remote(hosts) | shared | {"rank": 0}, n=96) as one,
        training(tmp_path, loader=remote(hosts) | shared | {"rank": 1}, n=96) as other,
    ):
        one.finish()
        other.finish()
        assert one.steps == other.steps == 8


def test_a_digest_tells_apart_what_differs_in_any_way() -> None:
    ones = torch.ones(4)
    batches = [
        {"a": ones}, {"b": ones}, {"a": ones.double()}, {"a": ones.reshape(2, 2)}, {"a": [ones]}, {"a": (ones,)},
        {"a": ones * 2}, {"a": ones, "b": 1}, {"a": ones, "b": 1.0}, {"a": ones, "b": "1"}, [ones], np.ones(4).tolist(),
        {"a": [ones, [ones]]}, {"a": [ones, ones]}, {"a": [[ones], ones]},
    ]  # fmt: skip
    assert len({audit.digest(batch) for batch in batches}) == len(batches)
    assert audit.digest({"a": torch.ones(4)}) == audit.digest({"a": ones})

"""Lanes that are opened again and give other rows than before: `verify` sees it, and states with marks are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lane_data import OfProcess, Versions

from headrace import feed


def _loader(file: Path, workers: int, **options: Any) -> feed.DataLoader:
    options = {"batch_size": 4} | options
    return feed.DataLoader(Versions(str(file)), num_workers=workers, num_shards=4, seed=3, **options)


def _stopped(file: Path, steps: int, workers: int, **options: Any) -> dict[str, Any]:
    with _loader(file, workers, **options) as loader:
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        state: dict[str, Any] = loader.state_dict()
        return state


def _rest(file: Path, state: dict[str, Any], workers: int, **options: Any) -> list[list[int]]:
    with _loader(file, workers, **options) as loader:
        loader.load_state_dict(state)
        return [batch["row"].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_with_the_marks_of_an_earlier_version_goes_on(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "version"
    file.write_text("96 0")
    state, whole = _stopped(file, 5, workers), _rest(file, {}, 0)
    assert "marks" not in state["lanes"]
    state["lanes"]["marks"] = [(lane, 4, "AAAAAAAAAAAA") for lane in range(4)]
    assert _rest(file, state, workers) == whole[5:]
    merged = feed.merge_states([state])
    assert "marks" not in merged["lanes"]
    assert _rest(file, merged, workers) == whole[5:]


@pytest.mark.promise(
    "feed-lanes", "data without a count: `verify` finds rows that depend on the process that makes them"
)
def test_rows_that_depend_on_the_process_are_seen_by_verify(tmp_path: Path) -> None:
    with (
        feed.DataLoader(OfProcess(160, ""), 4, num_workers=2, num_shards=2, seed=3, verify=1) as loader,
        pytest.warns(feed.PurityWarning, match="two workers made different data"),
    ):
        assert len(list(loader)) == 40

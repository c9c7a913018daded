"""Lanes that are opened again and give other rows than before: they are named, in a later run and in this one."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from lane_data import OfProcess, StatefulRows, Versions

from headrace import feed
from headrace.errors import PipelineError, PositionError
from headrace.feed.pipelines.fingerprint import own_kind
from headrace.feed.wire.draws import Draw
from headrace.feed.worker.lane_reader import LaneReaders
from headrace.feed.worker.output_marks import mark_of


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


SHARED: dict[str, Any] = {"batch_size": None, "global_batch_size": 8}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, SHARED], ids=["batches of a lane", "batches of all lanes"])
def test_data_that_have_changed_since_a_state_was_taken_are_an_error_that_names_lane_and_output(
    tmp_path: Path, workers: int, options: dict[str, Any]
) -> None:
    options = {name: value for name, value in ({"batch_size": 4} | options).items() if value is not None}
    if "global_batch_size" in options:
        options["batch_size"] = 1
    file = tmp_path / "version"
    file.write_text("96 0")
    state = _stopped(file, 5, workers, **options)
    whole = _rest(file, {}, 0, **options)
    assert _rest(file, state, workers, **options) == whole[5:], "what has not changed goes on"
    file.write_text("96 1000")
    with pytest.raises(PipelineError, match=r"lane \d of 4 was opened again .* output \d+ is not what it was") as error:
        _rest(file, state, workers, **options)
    assert "if the data have changed, begin again" in str(error.value)
    assert len(_rest(file, state, workers, verify=0, **options)) == len(whole) - 5, "it can be turned off"
    file.write_text("4 0")
    with pytest.raises(PipelineError, match=r"lane \d of 4 .* it ends behind 1 of the \d+ that it gave"):
        _rest(file, state, workers, **options)


def test_a_state_without_marks_goes_on_as_before(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("96 0")
    state = _stopped(file, 5, 2)
    assert len(state["lanes"]["marks"]) == 4
    del state["lanes"]["marks"]
    file.write_text("96 1000")
    assert len(_rest(file, state, 2)) == 19


def test_marks_of_another_kind_of_worker_are_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("96 0")
    state = _stopped(file, 5, 2)
    state["lanes"]["marks"] = [[lane, at, mark[:8] + "AAAA"] for lane, at, mark in state["lanes"]["marks"]]
    file.write_text("96 1000")
    assert len(_rest(file, state, 2)) == 19, "other libraries may make other bits"


def test_without_marks_no_versions_of_libraries_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "version"
    file.write_text("96 0")
    state = _stopped(file, 5, 0)
    looked: list[str] = []
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: looked.append(name) or version(name))
    own_kind.cache_clear()
    assert len(_rest(file, {}, 0, verify=0)) == len(_rest(file, state, 0, verify=0)) + 5
    assert looked == []
    _rest(file, state, 0)
    assert "numpy" in looked, "with marks they are"


def test_a_damaged_mark_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("96 0")
    state = _stopped(file, 5, 0)
    lane, at, _ = state["lanes"]["marks"][0]
    state["lanes"]["marks"][0] = (lane, at, "?")
    with pytest.raises(PositionError, match="damaged"):
        _rest(file, state, 0)


def test_rows_that_depend_on_the_process_are_named_when_a_worker_was_killed(tmp_path: Path) -> None:
    killer = tmp_path / "killer"
    killer.touch()
    with (
        feed.DataLoader(OfProcess(160, str(killer)), 4, num_workers=2, num_shards=2, seed=3) as loader,
        pytest.warns(feed.PurityWarning, match="two workers made different data"),
        pytest.raises(PipelineError, match=r"lane \d of 2 was opened again and gives other rows"),
    ):
        list(loader)
    assert not killer.exists()


def test_a_token_that_leads_elsewhere_costs_a_replay_and_is_told() -> None:
    readers, drawn = LaneReaders(StatefulRows(40, wrong=True)), []
    draw = Draw(0, 1, 0, 4, mark=b"")
    for first in (0, 4):
        outputs, told = readers.draw(0, 1, msgspec.structs.replace(draw, first=first))
        drawn.append((outputs, told))
    token = drawn[0][1].token
    again = msgspec.structs.replace(draw, first=8, at=4, token=token, known=8, mark=drawn[1][1].mark)
    outputs, told = LaneReaders(StatefulRows(40, wrong=True)).draw(0, 1, again)
    assert [row["row"] for row in outputs] == [8, 9, 10, 11]
    assert "the dataset cannot go on from its own state" in told.note
    assert "it gives other rows" in told.note
    with pytest.raises(PipelineError, match=r"lane 0 of 1 .* output 7 is not what it was"):
        LaneReaders(StatefulRows(40, wrong=True)).draw(0, 1, msgspec.structs.replace(again, mark=b"others"))


def test_a_mark_tells_what_a_batch_can_hold_apart() -> None:
    class Own:
        pass

    large = np.zeros(1 << 20, np.uint8)
    others = [large.copy() for _ in range(2)]
    others[0][0] = others[1][-1] = 1
    outputs = [
        1, 2, "1", [1], (1,), {"a": 1}, {"b": 1}, 1.0, None, b"1", torch.ones(2), torch.ones(2, 1), torch.ones(2).int(),
        np.ones(2), large, *others,
    ]  # fmt: skip
    marks = [mark_of(output) for output in outputs]
    assert len(set(marks)) == len(outputs)
    assert marks == [mark_of(output) for output in outputs]
    assert mark_of(Own()) == b"", "only an own collate_fn can read it"

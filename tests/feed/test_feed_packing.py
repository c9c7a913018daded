"""Packing: every token of every document once, in sequences of one length; a position is a position at every step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import SOAK
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_data import (
    StatefulDocuments,
    documents,
    long_enough,
    packed_shards,
    parts,
    stepped_shards,
    write_documents,
)
from packed_reference import sequences

from headrace import feed
from headrace.errors import PipelineError, PositionError
from headrace.feed import DataLoader
from headrace.feed.worker.lane_reader import DatasetLane

OPTIONS: dict[str, Any] = {"batch_size": 2, "num_shards": 3, "seed": 5, "collate_fn": feed.stack_arrays}
METHODS = ("best_fit", "concat")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(write_documents(tmp_path / "data", 60)))
    return tmp_path / "data"


KINDS: dict[str, Callable[..., Any]] = {
    "shards, shuffled": lambda **packing: packed_shards(**packing),
    "stateful": lambda **packing: feed.pack(StatefulDocuments(50), **packing).map(tag),
    "function": lambda **packing: feed.pack(documents, **packing),
    "steps": lambda **packing: stepped_shards(**packing),
    "one or none": lambda **packing: feed.pack(documents, **packing).filter(long_enough).map(tag),
}
SHARDS = ("shards, shuffled", "steps")


def tag(sequence: Any) -> Any:
    return sequence | {"drawn": np.random.rand(2)}


def flat(batch: dict[str, Any]) -> list[bytes]:
    return [np.asarray(value).tobytes() for value in batch.values()]


def loader_of(kind: str, method: str, **options: Any) -> DataLoader:
    shuffle: dict[str, Any] = {"shuffle": feed.Window(4, 3)} if kind in SHARDS else {}
    return DataLoader(KINDS[kind](length=16, block=7, method=method), **OPTIONS, **shuffle, **options)


@pytest.mark.promise(
    "feed-packing", "packing: every token comes once, no sequence is overfull, `stats()` counts the padding"
)
@settings(deadline=None, max_examples=40)
@given(
    given=st.lists(st.lists(st.integers(0, 999), max_size=40), max_size=30),
    length=st.integers(1, 24),
    block=st.integers(1, 12),
    method=st.sampled_from(METHODS),
    separator=st.none() | st.integers(0, 9),
    lanes=st.integers(1, 3),
)
def test_every_token_comes_once_no_bin_is_overfull_and_the_padding_is_what_stats_say(
    given: list[list[int]], length: int, block: int, method: Any, separator: int | None, lanes: int
) -> None:
    def own() -> Iterator[list[int]]:
        lane = feed.lane()
        assert lane is not None
        return iter(given[lane.id :: lane.num_workers])

    how: dict[str, Any] = {"length": length, "block": block, "method": method, "separator": separator, "padding": -1}
    with DataLoader(feed.pack(own, **how), 3, num_shards=lanes, collate_fn=feed.stack_arrays) as loader:
        found = [{name: batch[name][row] for name in batch} for batch in loader for row in range(len(batch["tokens"]))]
        stats = loader.stats()
    expected = [row for lane in range(lanes) for row in sequences(given[lane::lanes], **how)]
    assert sorted(map(flat, found)) == sorted(map(flat, expected))
    pieces = [row["tokens"][row["segments"] == part].tolist() for row in found for part in range(1, length + 1)]
    whole = [[*document, *([] if separator is None else [separator])] for document in given]
    assert sum(map(len, pieces)) == sum(map(len, whole)) == stats["tokens"]
    if method == "best_fit":  # what fits is not cut
        cut = [document[at : at + length] for document in whole for at in range(0, len(document), length)]
        assert sorted(piece for piece in pieces if piece) == sorted(cut)
    padded = sum(int((row["segments"] == 0).sum()) for row in found)
    assert stats["padding_fraction"] == pytest.approx(padded / max(1, len(found) * length))
    for row in found:
        assert {name: (array.shape, array.dtype) for name, array in row.items()} == {
            "tokens": ((length,), np.dtype(np.int64)), "segments": ((length,), np.dtype(np.int32)),
            "positions": ((length,), np.dtype(np.int32)),
        }  # fmt: skip
        assert set(row["tokens"][row["segments"] == 0].tolist()) <= {-1}


@pytest.mark.promise("feed-packing", "packing: resume is exact at every step, a killed worker costs nothing")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_at_every_step_with_and_without_the_tokens(kind: str, method: str) -> None:
    whole = [flat(batch) for batch in loader_of(kind, method)]
    assert len(whole) > 10
    loader = loader_of(kind, method)
    batches = iter(loader)
    for step in range(1, len(whole)):
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        assert len(json.dumps(state)) < 2000
        if not SOAK and step % 4 not in (1, 3):
            continue
        for tokens in (True, False) if step % (4 if SOAK else 8) == 1 else (True,):
            if not tokens:
                state["lanes"] |= {"tokens": [], "ended": []}
            resumed = loader_of(kind, method)
            resumed.load_state_dict(state)
            assert [flat(batch) for batch in resumed] == whole[step:], (step, tokens)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("kind", "method"), [("shards, shuffled", "concat"), ("stateful", "best_fit"), ("steps", "best_fit")]
)
def test_workers_decide_nothing_and_what_they_make_again_is_the_same(kind: str, method: str) -> None:
    expected = [flat(batch) for batch in loader_of(kind, method)]
    with loader_of(kind, method, num_workers=2, verify=1) as loader:
        assert [flat(batch) for batch in loader] == expected
        assert loader.stats()["slices_verified"] > 3
        assert loader.stats()["purity_failures"] == 0
        assert 0 < loader.stats()["padding_fraction"] < 0.4


@pytest.mark.parametrize("method", METHODS)
def test_a_lane_is_opened_at_its_block_or_at_the_document_that_is_cut(method: Any, folder: Path) -> None:
    read: list[int] = []

    def noted(row: Any) -> Any:
        read.append(row["number"])
        return row["tokens"]

    packed = feed.jsonl(folder).map(noted).pack(16, method=method, block=7)
    loader = DataLoader(packed, batch_size=1, num_shards=1)
    batches = iter(loader)
    for _ in range(25):
        next(batches)
    read.clear()
    resumed = DataLoader(packed, batch_size=1, num_shards=1)
    resumed.load_state_dict(loader.state_dict())
    next(iter(resumed))
    assert read[0] > 20
    assert len(read) <= (14 if method == "best_fit" else 8)


def test_a_stateful_dataset_is_opened_near_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in METHODS:
        loader = loader_of("stateful", method)
        batches = iter(loader)
        for _ in range(12):
            next(batches)
        made = 0
        one = DatasetLane.__next__

        def counted(lane: Any, one: Any = one) -> Any:
            nonlocal made
            made += 1
            return one(lane)

        with monkeypatch.context() as patch:
            patch.setattr(DatasetLane, "__next__", counted)
            resumed = loader_of("stateful", method)
            resumed.load_state_dict(loader.state_dict())
            next(iter(resumed))
        assert 0 < made <= 14, method


@pytest.mark.parametrize("method", METHODS)
def test_what_steps_make_behind_packing_is_what_they_make_of_each_sequence(method: Any, folder: Path) -> None:
    def plain(sequence: Any) -> bool:
        return bool(sequence["segments"].max() > 1)

    def drawn(value: Any) -> Any:
        numbers.append(np.random.rand())
        return value

    numbers: list[float] = []
    packed = feed.jsonl(folder).map(lambda row: drawn(row)["tokens"]).pack(16, method=method, block=7)
    options: dict[str, Any] = {"batch_size": 1, "num_shards": 1, "seed": 5, "collate_fn": lambda rows: rows[0]}
    whole = list(DataLoader(packed, **options))
    loader = DataLoader(packed.filter(plain).map(drawn).flat_map(parts), **options)
    found = list(loader)
    kept = [sequence for sequence in whole if plain(sequence)]
    expected = [sequence["tokens"].tolist() for sequence in kept for _ in parts(sequence)]
    assert 3 < len(kept) < len(whole)
    assert [part["tokens"].tolist() for part in found] == expected
    told = sum(int((sequence["segments"] > 0).sum()) for sequence in kept if list(parts(sequence)))
    assert loader.stats()["tokens"] == told  # once for each sequence of which something came
    assert len(set(numbers)) == len(numbers) - 60  # documents were drawn twice; no sequence draws what one of them drew
    noted = [sequence["drawn"].tolist() for sequence in DataLoader(packed.map(tag), **options) if plain(sequence)]
    left = list(DataLoader(packed.filter(plain).map(tag), **options))
    assert [sequence["drawn"].tolist() for sequence in left] == noted  # they follow from the number of the sequence


def test_what_cannot_be_packed_is_told() -> None:
    for wrong, told in (
        ({"length": 0}, "length must be an integer of at least 1"), ({"length": 8, "block": 0}, "block must be"),
        ({"length": 8, "method": "first"}, "method must be"), ({"length": 8, "longer": "cut"}, "longer must be"),
        ({"length": 8, "dtype": "float32"}, r"dtype of tokens must be one of int64, .*, uint8, got 'float32'"),
        ({"length": 8, "dtype": "banana"}, r"dtype of tokens must be one of int64, .*, uint8, got 'banana'"),
        ({"length": 8, "dtype": None}, r"dtype of tokens must be .*, got None"),
        ({"length": 8, "dtype": "i4, i4"}, r"dtype of tokens must be .*, got 'i4, i4'"),
        ({"length": 8, "dtype": "uint16", "separator": 70_000}, "separator must be a token"),
        ({"length": 8, "padding": None}, "padding must be a token"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=told):
            feed.pack(documents, **wrong)  # type: ignore[arg-type]
    for made, packing, told in (
        ([[1, 2, 3]], {"longer": "error"}, r"document 0 of the lane has 3 tokens, and a sequence has 2"),
        ([[1], "text"], {}, r"document 1 of the lane is str 'text'\nhint: tokenise in \.map"),
        ([[0.5]], {}, "list or an array of whole numbers"),
        ([{"a": [1]}], {"field": "b"}, "has no field 'b': it has a"),
        ([[1, 300]], {"dtype": "uint8"}, "token 300, which does not fit uint8"),
    ):
        with pytest.raises(PipelineError, match=told):
            list(DataLoader(feed.pack(lambda made=made: made, 2, **packing), num_shards=1))  # type: ignore[misc, arg-type]
    with pytest.raises(PipelineError) as failed:  # said once: headrace's own frames are of no use to anybody
        list(DataLoader(feed.pack(lambda: ["text"], 2), num_shards=1, num_workers=1))
    assert str(failed.value).count("tokenise in .map() before .pack()") == 1
    assert "Traceback" not in str(failed.value)
    with pytest.raises(PipelineError, match=r"a list has rows by number(.|\n)*feed\.hf"):
        DataLoader(feed.pack([[1]], 8))
    with pytest.raises(PipelineError, match="can be read once"):
        DataLoader(feed.pack((document for document in [[1]]), 8))
    with pytest.raises(ValueError, match="unspecified shuffle option"):
        DataLoader(feed.pack(documents, 8), shuffle=True)


def test_a_state_of_another_packing_is_refused(folder: Path) -> None:
    source = feed.jsonl(folder)
    state = DataLoader(source.pack(16, field="tokens"), num_shards=2, seed=1).state_dict()
    DataLoader(source.pack(16, field="tokens"), num_shards=2, seed=1).load_state_dict(state)
    for other in (source.pack(17, field="tokens"), source.pack(16, field="tokens", method="concat")):
        with pytest.raises(PositionError, match=r"shards(.|\n)*packed or mixed in another way"):
            DataLoader(other, num_shards=2, seed=1).load_state_dict(state)


def test_packing_needs_no_torch(folder: Path) -> None:
    program = (
        "import sys; from headrace import feed\n"
        "packed = feed.jsonl(sys.argv[1]).pack(16, field='tokens')\n"
        "loader = feed.DataLoader(packed, 4, num_shards=2, num_workers=1, collate_fn=feed.stack_arrays)\n"
        "assert sum(len(batch['tokens']) for batch in loader) > 30"
    )
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "without_torch"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], check=False, capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""bench.held: what it calls the quality of a shuffle, and what processes hold, are what they are said to be."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.held.__main__ import COLUMNS, kept_table, memory_table, read, shuffling_table
from bench.held.footprint import held
from bench.held.shuffling import BATCH, PARTS, quality

ROWS = 64 * 200


def batches(order: list[int]) -> list[list[int]]:
    return [order[at : at + BATCH] for at in range(0, len(order), BATCH)]


def test_an_epoch_in_order_and_a_whole_shuffle_are_the_two_ends_of_quality() -> None:
    ordered = quality(batches([*range(ROWS)]), ROWS)
    assert ordered["correlation"] == pytest.approx(1.0)
    assert ordered["touched"] < 2
    whole = quality(batches(np.random.default_rng(3).permutation(ROWS).tolist()), ROWS)
    assert abs(whole["correlation"]) < 0.05
    assert whole["touched"] == pytest.approx(PARTS * (1 - (1 - 1 / PARTS) ** BATCH), abs=1.0)


def test_memory_of_a_child_is_held_by_workers() -> None:
    program = "held = bytearray(b'x' * 50_000_000); print('full', flush=True); input()"
    command = [sys.executable, "-S", "-c", program]
    before = held()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "full\n"
        during = held()
        child.communicate("\n", timeout=20)
    assert 50 < during.workers - before.workers < 80
    assert abs(during.trainer - before.trainer) < 20


def test_tables_follow_from_raw_data(tmp_path: Path) -> None:
    raw = tmp_path / "held.csv"
    places = [{"samples": at, "trainer": 60.0, "workers": 100.0 + at} for at in range(1, 21)]
    few, many = ({at: {"trainer": held, "workers": 50.0} for at in ("20", "100", "300")} for held in (80.0, 84.0))
    runs: list[tuple[str, str, str, str, dict[str, object]]] = [
        ("memory", "0", "headrace", "1000000", {"seconds": 9.6, "held": places}),
        *(("kept", turn, "torch", "labels", {"held": behind}) for turn, behind in (("0", few), ("1", many))),
        ("shuffling", "0", "webdataset", "0", {"touched": 1.4, "correlation": 1.0, "megabytes": 200.0}),
        ("shuffling", "0", "webdataset", "1000", {"touched": 17.2, "correlation": 0.553, "megabytes": 245.0}),
    ]
    with raw.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((*key, json.dumps(figures)) for *key, figures in runs)
    measured = read(raw)
    assert "| labels | torch | 82, 82, 82 | 50, 50, 50 |" in kept_table(measured)
    assert "| headrace | 1,000,000 | 102, 110, 120 | 60, 60, 60 |" in memory_table(measured)
    assert "each of 2 workers | 17.2 | +0.55 | 245 | +45 |" in shuffling_table(measured)

"""The feed's measurements: what they keep is complete and plausible, and figures follow from it as the docs say.

How fast anything is, is not tested: nothing here depends on time.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.feed import publish  # noqa: E402
from bench.feed.cli import merged  # noqa: E402
from bench.feed.figures import Figure, Records, markdown, rate  # noqa: E402
from bench.feed.measure import cpu_seconds, wait_until_idle  # noqa: E402
from bench.feed.records import COLUMNS, Record, read, write  # noqa: E402
from bench.feed.resnet import resnet50  # noqa: E402
from bench.feed.settings import DEFAULTS, Settings  # noqa: E402


def window(contender: str, repeat: int, batches: int, **fields: object) -> Record:
    return Record("shm19", "", contender, repeat, batches=batches, bytes=batches * 1000, seconds=2.0, **fields)  # type: ignore[arg-type]


def test_a_quick_run_keeps_complete_and_plausible_records(tmp_path: Path) -> None:
    raw = tmp_path / "quick.csv"
    command = [sys.executable, "-m", "bench.feed", "--quick", "--rows", "shm150k", "--into", str(raw)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    with raw.open(newline="") as file:
        assert tuple(next(csv.reader(file))) == COLUMNS
    records = read(raw)
    assert {(record.row, record.contender) for record in records} == {
        ("shm150k", "torch"), ("shm150k", "headrace"), ("shm150k", "memcpy")
    }  # fmt: skip
    for record in records:
        assert record.error == ""
        assert record.batches >= 5
        assert record.bytes > record.batches
        assert record.seconds > 0
        assert record.cpu_trainer_s > 0
        assert (record.cpu_others_s > 0) == (record.contender != "memcpy")
    [session] = json.loads(raw.with_suffix(".json").read_text())
    assert session["cores"] >= 1
    assert session["packages"]["torch"]
    assert "| shm150k | headrace / torch, throughput |" in done.stdout


BUSY = "import sys, time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nsys.stdin.read()"


def test_a_window_waits_until_the_other_contenders_have_filled_their_buffers() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) as process:
        before = cpu_seconds(process.pid)
        assert not wait_until_idle([process.pid], 0.02, seconds=0.0)
        assert wait_until_idle([process.pid], 0.1, seconds=30.0)
        assert cpu_seconds(process.pid) - before > 0.2
        process.communicate()


def test_a_run_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    raw = tmp_path / "some.csv"
    write(raw, [Record("resume", "", "headrace", 0, batches=1, bytes=512, seconds=0.01)])
    command = [sys.executable, "-m", "bench.feed", "--quick", "--rows", "resume", "--into", str(raw)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert len(read(raw)) == 1
    assert "10ms" in done.stdout.replace(" ms", "ms")


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = [
        window("torch", 0, 4, cpu_trainer_s=0.125, settings='{"prefetch_factor": 2}'),
        window("b", 1, 9, error="x, y"),
    ]
    write(tmp_path / "raw.csv", records[:1])
    write(tmp_path / "raw.csv", records[1:])
    assert read(tmp_path / "raw.csv") == records


def test_a_ratio_is_taken_within_each_round() -> None:
    records = [window("headrace", repeat, batches) for repeat, batches in enumerate((60, 20, 90))]
    records += [window("torch", repeat, batches) for repeat, batches in enumerate((10, 5, 9))]
    figure = Records("shm19", records).ratio("speed", "headrace", "torch", rate, target=6.0)
    assert figure.values == (6.0, 4.0, 10.0)
    assert (figure.median, figure.verdict, figure.lost) == (6.0, "yes", False)


def test_a_contender_that_failed_is_shown_and_misses_the_target() -> None:
    records = [window("torch", 0, 10), Record("shm19", "", "headrace", 0, error="PipelineError: no")]
    figure = Records("shm19", records).ratio("speed", "headrace", "torch", rate, target=6.0)
    assert figure.lost
    assert "headrace failed: PipelineError: no" in markdown([figure])


@pytest.mark.parametrize(
    ("values", "better", "against", "lost"),
    [
        ((0.9,), "more", "torch", True),
        ((1.1,), "more", "torch", False),
        ((1.1,), "less", "Ray Data", True),
        ((0.5,), "more", "memcpy", False),
    ],
)
def test_what_counts_as_lost(values: tuple[float, ...], better: str, against: str, lost: bool) -> None:
    assert Figure("row", "name", values, better=better, against=against).lost is lost  # type: ignore[arg-type]


def test_peers_run_at_the_best_settings_of_the_last_sweep(tmp_path: Path) -> None:
    slow, fast = ({"prefetch_factor": number, "persistent_workers": True} for number in (2, 8))
    for name, better in (("a.csv", slow), ("b.csv", fast)):
        for settings in (slow, fast):
            rate = 9 if settings is better else 5
            told = json.dumps(settings)
            write(tmp_path / name, [Record("shm19", "workers=1", "torch", 0, rate, 1, 1.0, settings=told)])
    chosen = Settings([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert chosen.of("torch", "shm19", 1) == fast
    assert chosen.of("torch", "shm19", 2) == DEFAULTS["torch"]


def test_the_docs_have_a_place_for_the_figures() -> None:
    text = (publish.DOCS / "benchmark-figures.md").read_text()
    for name in ("table", "advise", "losses"):
        assert "the block" in publish.between(text, name, "the block")
    with pytest.raises(ValueError, match="no block"):
        publish.between("a page", "table", "the block")


def test_the_model_of_the_gpu_benchmark_is_a_resnet_50() -> None:
    model = resnet50()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032  # as in torchvision
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)


def test_of_several_files_a_row_is_taken_from_the_last_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    found = {
        one: [Figure("shm19", "a", (1.0,)), Figure("jpeg", "b", (1.0,)), Figure("jpeg", "c", (1.0,))],
        two: [Figure("jpeg", "b", (2.0,))],
    }
    rows, figures = merged(found)
    assert rows == {one: ["shm19"], two: ["jpeg"]}
    assert [(figure.row, figure.values) for figure in figures] == [("shm19", (1.0,)), ("jpeg", (2.0,))]

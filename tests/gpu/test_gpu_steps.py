"""Steps on a real GPU: its own time, read without making anybody wait."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
import torch

from headrace.feed import DataLoader, track
from headrace.feed.metrics import step_meter
from headrace.runs.metric_records import LoaderSecond, Metric

CYCLES = 50_000_000
ROWS = 64


class Images:
    """Rows of 1 MB."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((262_144,), float(index))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_METRICS", str(tmp_path / "0.jsonl"))
    return tmp_path / "0.jsonl"


def lines(path: Path) -> list[LoaderSecond]:
    found = [msgspec.json.decode(line, type=Metric) for line in path.read_bytes().splitlines()]
    return [line for line in found if isinstance(line, LoaderSecond)]


def work_seconds() -> float:
    """Returns how long the GPU takes for CYCLES."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def test_compute_is_the_gpu_s_time_and_the_loop_runs_ahead_of_it(path: Path) -> None:
    expected = work_seconds()
    tracked = track(range(10))
    begun = time.monotonic()
    for _ in tracked:
        torch.cuda._sleep(CYCLES)
    assert time.monotonic() - begun < 5 * expected, "somebody waited for the GPU"
    torch.cuda.synchronize()
    tracked._meter.close()
    [line] = lines(path)
    assert line.steps == 10
    assert line.compute == pytest.approx(10 * expected, rel=0.2)
    assert line.h2d is None


def test_what_the_gpu_waits_for_is_no_compute(path: Path) -> None:
    expected = work_seconds()

    def late() -> object:
        for number in range(5):
            time.sleep(3 * expected)
            yield number

    tracked = track(late())  # type: ignore[arg-type]
    for _ in tracked:
        torch.cuda._sleep(CYCLES)
    torch.cuda.synchronize()
    tracked._meter.close()
    [line] = lines(path)
    assert line.compute == pytest.approx(5 * expected, rel=0.3)
    assert line.wait > 10 * expected


@pytest.mark.parametrize("workers", [0, 2])
def test_headrace_s_copies_are_measured_beside_the_computation(path: Path, workers: int) -> None:
    with DataLoader(Images(), batch_size=8, num_workers=workers, device="cuda", verify=0.0) as loader:
        for batch in loader:
            batch.square_().sum()
        torch.cuda.synchronize()
    found = lines(path)
    assert sum(line.steps for line in found) == ROWS // 8
    for line in found:
        assert line.compute is not None
        assert line.h2d is not None
        assert 0 < line.h2d < line.step + line.wait
    megabytes = sum(line.bytes for line in found) / 1e6
    assert megabytes / sum(line.h2d or 0.0 for line in found) < 200_000, "faster than any bus"


def test_while_a_graph_is_captured_nothing_is_recorded() -> None:
    assert step_meter.mark() is not None
    graph = torch.cuda.CUDAGraph()
    value = torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        assert step_meter.mark() is None
        value += 1
    graph.replay()
    torch.cuda.synchronize()
    assert value.item() == 1.0

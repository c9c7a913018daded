"""The phases of a trial, in this process: which batches a loop gets, and what is written of them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from headrace import feed
from headrace.insight.doctor_report import ChosenWorkers, LoaderTrial, advice_lines, judged, read_trial, report
from headrace.insight.offload_decision import Advice, OffloadDecision
from headrace.measuring.facts import facts
from headrace.measuring.watch import CACHE_STEPS, SETTLE_STEPS, STOPPED, Spec, Spool, Stopped, Trial

STEPS, WARMUP = 5, 2
BEFORE_REPLAY = WARMUP + STEPS + 1 + CACHE_STEPS
ALL = BEFORE_REPLAY + SETTLE_STEPS + STEPS

Watch = Callable[[Any], Iterator[Any]]


class Bench:
    """A trial in a folder."""

    def __init__(
        self, folder: Path, *, full: bool = False, cache: int = 1 << 20, parent: int = 0, warmup: int = WARMUP
    ) -> None:
        self.folder = folder
        self.trial = Trial(Spec(STEPS, warmup, cache, full, parent or os.getpid()), Spool(str(folder)))

    def passes(self, loader: Any, count: int) -> list[list[Any]]:
        """Iterates over a loader; batches by pass, until the trial stops the loop."""
        seen: list[list[Any]] = []
        try:
            for _ in range(count):
                seen.append([])
                for batch in self.trial.watch(loader, functools.partial(type(loader).__iter__, loader)):
                    seen[-1].append(batch)
        except Stopped:
            pass
        self.trial.close()
        return seen

    def judged(self) -> LoaderTrial:
        [rank] = read_trial(self.folder).ranks
        found = judged(rank)
        assert found is not None
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    return functools.partial(Bench, tmp_path)


def numbers(count: int, width: int = 1) -> TensorDataset:
    return TensorDataset(torch.arange(count).float().reshape(-1, 1).repeat(1, width))


def test_phases_take_their_steps_and_then_the_loop_is_stopped(bench: Callable[..., Bench]) -> None:
    one = bench()
    [seen] = one.passes(DataLoader(numbers(400), batch_size=2), 1)
    values = [batch[0][:, 0].tolist() for batch in seen]
    assert len(seen) == ALL
    assert values[:BEFORE_REPLAY] == [[2.0 * n, 2.0 * n + 1] for n in range(BEFORE_REPLAY)]
    kept = values[BEFORE_REPLAY - CACHE_STEPS : BEFORE_REPLAY]
    assert values[BEFORE_REPLAY:] == kept[: ALL - BEFORE_REPLAY]
    steps = one.judged().steps
    assert {phase: len(found) for phase, found in steps.items() if found} == {
        "warmup": WARMUP, "measured": STEPS, "replay": STEPS,
    }  # fmt: skip
    assert one.trial.spool.over


def test_a_batch_that_the_loop_changes_is_replayed_as_it_was(bench: Callable[..., Bench]) -> None:
    sums = []

    def loop(trial: Trial, loader: Any) -> None:
        for (batch,) in trial.watch(loader, functools.partial(DataLoader.__iter__, loader)):
            sums.append(batch.sum().item())
            batch.zero_()

    with pytest.raises(Stopped):
        loop(bench().trial, DataLoader(numbers(400), batch_size=2))
    assert len(sums) == ALL
    assert all(sums)


@pytest.mark.promise(
    "doctor-decides", "a script that ends early is judged by the steps that it made, and the report says so"
)
@pytest.mark.parametrize(
    ("steps", "judged_by", "instead"),
    [
        (4, "3 steps of its warm-up", "more data or epochs"),
        (7, "4 steps of its warm-up", "more data or epochs"),  # two steps are measured
        (8, "3 steps, ", "more data or epochs"),
        (25, "5 steps, ", "--steps 4, or more data or epochs"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_script_that_ends_early_is_judged_by_what_it_made(
    bench: Callable[..., Bench], steps: int, judged_by: str, instead: str, workers: int
) -> None:
    one = bench(warmup=5)
    loader = feed.DataLoader(numbers(2 * steps), batch_size=2, num_workers=workers)
    optimizer = torch.zeros(1, requires_grad=True)
    for _ in one.trial.watch(loader, functools.partial(type(loader).__iter__, loader)):
        (2 * optimizer).sum().backward()
    one.trial.close()
    verdict = report(read_trial(one.folder), ["python", "train.py"], 0, stopped=False, transfer=None)
    assert verdict is not None
    assert [
        f"this is judged by {judged_by}" in note and note.endswith(f"give it {instead}") for note in verdict.notes
    ] == [True], verdict.notes
    assert verdict.ranks[0].figures["sample_cpu"].value is not None
    assert verdict.ranks[0].figures["step_time"].window is not None


@pytest.mark.parametrize("rows", [5, 6, 14])
def test_every_pass_keeps_its_length_in_every_phase(bench: Callable[..., Bench], rows: int) -> None:
    seen = bench().passes(DataLoader(numbers(rows), batch_size=2), 40)
    length = -(-rows // 2)
    assert all(len(batches) == length for batches in seen[:-1])
    assert sum(len(batches) for batches in seen) == ALL


@pytest.mark.parametrize("workers", [0, 1])
def test_a_full_run_has_all_its_passes(bench: Callable[..., Bench], workers: int) -> None:
    one = bench(full=True)
    seen = one.passes(DataLoader(numbers(22), batch_size=2, num_workers=workers), 5)
    assert [len(batches) for batches in seen] == [11] * 5
    assert [batch[0][:, 0].tolist() for batch in seen[-1]] == [[2.0 * n, 2.0 * n + 1] for n in range(11)]
    assert one.trial.ended


def test_a_last_short_batch_counts_its_own_rows(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.passes(DataLoader(numbers(5), batch_size=4, collate_fn=lambda rows: "no tensor"), 40)
    assert {step.rows for step in one.judged().steps["measured"]} == {4, 1}


def test_an_evaluation_is_not_replayed_before_the_training(bench: Callable[..., Bench]) -> None:
    one = bench(full=True)
    with torch.no_grad():
        one.passes(DataLoader(numbers(30), batch_size=2), 1)
    assert not one.trial.ended
    one.passes(DataLoader(numbers(400), batch_size=4), 1)
    assert one.trial.ended
    assert (one.judged().loader.batch_size, one.judged().loader.training) == (4, True)
    found = report(read_trial(one.folder), ["x"], 0, stopped=True, transfer=None)
    assert found is not None
    assert found.ranks[0].others == ("DataLoader(TensorDataset, batch_size=2, num_workers=0): 15 steps",)


def test_a_script_that_only_evaluates_is_replayed_in_the_end(bench: Callable[..., Bench]) -> None:
    one = bench()
    with torch.no_grad():
        one.passes(DataLoader(numbers(400), batch_size=2), 1)
    assert one.judged().phases["replay"].replayed


def test_a_loader_that_is_made_anew_in_every_epoch_is_one_loader(bench: Callable[..., Bench]) -> None:
    one = bench(full=True)
    for _ in range(20):
        one.passes(DataLoader(numbers(6), batch_size=2), 1)
    [rank] = read_trial(one.folder).ranks
    assert len(rank.loaders) == 1
    assert one.trial.ended


@pytest.mark.parametrize(
    ("loader", "cache", "why"),
    [
        (DataLoader(numbers(400), batch_size=2, collate_fn=lambda rows: threading.Lock()), 1 << 20, "cannot be copied"),
        (DataLoader(numbers(400, 100), batch_size=2), 100, "a batch of 800 bytes is larger than the cache (100)"),
    ],
    ids=["uncopyable", "too large"],
)
def test_what_cannot_be_replayed_makes_the_same_steps_and_the_floor_is_estimated(
    bench: Callable[..., Bench], loader: Any, cache: int, why: str
) -> None:
    one = bench(cache=cache)
    assert [len(batches) for batches in one.passes(loader, 1)] == [ALL]
    found = report(read_trial(one.folder), ["x"], 0, stopped=True, transfer=None)
    assert found is not None
    note = found.ranks[0].figures["step_floor"].note
    assert note.startswith("estimated, batches were not replayed: ")
    assert why in note


class Stream(IterableDataset[torch.Tensor]):
    """Its length must not be asked for: torch would count on it."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(400.0))

    def __len__(self) -> int:
        raise AssertionError("its length was asked for")


def test_an_iterable_dataset_goes_on_where_it_was_after_the_replay(bench: Callable[..., Bench]) -> None:
    one = bench(full=True)
    [seen] = one.passes(DataLoader(Stream(), batch_size=2), 1)
    values = [batch.tolist() for batch in seen]
    expected = [[2.0 * n, 2.0 * n + 1] for n in range(200)]
    assert values[:BEFORE_REPLAY] + values[ALL:] == expected


def test_a_trial_whose_command_line_is_gone_stops(bench: Callable[..., Bench]) -> None:
    gone = 2**22 + 1  # beyond the largest pid
    assert bench(parent=gone).passes(DataLoader(numbers(400), batch_size=2), 1) == [[]]


def test_the_iterator_answers_as_the_loaders_own(bench: Callable[..., Bench]) -> None:
    loader = DataLoader(numbers(10), batch_size=2)
    watched = bench().trial.watch(loader, functools.partial(DataLoader.__iter__, loader))
    own = iter(loader)
    assert len(watched) == len(own) == 5  # type: ignore[arg-type]
    next(watched)
    assert watched._num_yielded == 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no_such"):
        watched.no_such  # type: ignore[attr-defined]  # noqa: B018


def test_the_exit_code_of_a_stop_ends_shell_scripts_but_not_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Stopped().code == STOPPED
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Stopped().code == 0


def _rows() -> Iterator[int]:
    yield from range(8)


@feed.pipeline
def _numbers() -> list[int]:
    return list(range(8))


def test_what_is_read_in_lanes_has_no_rows_by_number_and_is_called_by_its_name() -> None:
    loaders = [
        feed.DataLoader(_rows, 4, num_shards=2, seed=1),
        feed.DataLoader(_numbers(), 4, seed=1),
        feed.DataLoader(TensorDataset(torch.arange(8)), 4, seed=1),
        DataLoader(TensorDataset(torch.arange(8)), 4),
    ]
    found = [facts(loader) for loader in loaders]
    assert [each["map_style"] for each in found] == [False, True, True, True]
    assert [each["dataset"] for each in found] == ["_rows", "_numbers", "TensorDataset", "TensorDataset"]
    assert found[0]["samples"] is None


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (None, 'num_workers=16 on this machine (headrace.feed.DataLoader finds it itself: num_workers="auto")'),
        (ChosenWorkers(last=3, most=64), 'leave num_workers="auto", it had 3'),
        (ChosenWorkers(last=16, most=64), 'num_workers="auto" has found 16, leave it so'),
        (ChosenWorkers(last=4, most=4), "may have 4 (feed.Auto(at_most=)"),
    ],
    ids=["fixed", "on its way", "there", "bounded"],
)
def test_a_loader_that_chooses_its_workers_is_not_told_to_do_so(chosen: ChosenWorkers | None, says: str) -> None:
    [line] = advice_lines(OffloadDecision(Advice.LOCAL, "", workers=16), chosen)
    assert says in line
    assert ("finds it itself" in line) == (chosen is None)


@pytest.mark.parametrize(("workers", "chooses"), [(feed.Auto(at_most=3), True), (1, False)], ids=["auto", "fixed"])
def test_the_report_tells_whether_a_loader_chooses_its_workers(
    bench: Callable[..., Bench], workers: Any, *, chooses: bool
) -> None:
    one = bench()
    with feed.DataLoader(numbers(400), 2, num_workers=workers, seed=1) as loader:
        one.passes(loader, 1)
    found = report(read_trial(one.folder), ["x"], 0, stopped=True, transfer=None)
    assert found is not None
    chosen = found.ranks[0].chosen
    assert (chosen is not None) == chooses
    if chosen is not None:
        assert 1 <= chosen.last <= chosen.most <= 3

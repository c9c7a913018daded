"""The purity check: what depends on more than its place in the plan is noticed and named, with real workers."""

from __future__ import annotations

import itertools
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trouble_data
from effort import SOAK
from feed_servers import Server
from simulator import a_worker

from headrace.feed import DataLoader, stack_arrays
from headrace.feed.client.policy import PurityWarning
from headrace.feed.client.verifier import CHEAP_SECONDS, CHECK_SHARE, FIRST, Check, Verifier
from headrace.feed.client.work_units import Bundle, Request, Slice
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages

PLACES = ["local", "unix", "two tcp"]
SOURCES = ["generator", "counter", "clock"]


def purity_warnings(loader: DataLoader, until: str = "") -> list[str]:
    """Runs epochs until a figure of the stats counts, checks that every index comes in order, and returns the warnings.

    A short epoch may be over before the second worker has been started and asked.
    """
    deadline = time.monotonic() + 30
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while True:
            assert [key for batch in loader for key in listed(batch["key"])] == list(range(96))
            if not until or dict(loader.stats())[until] or time.monotonic() > deadline:
                break
    assert all(issubclass(warning.category, PurityWarning) for warning in caught)
    assert all(warning.filename == __file__ for warning in caught), "it points at the loop"
    return [str(warning.message) for warning in caught]


@pytest.mark.promise("feed-errors", "code that is not pure is noticed, with its index")
@pytest.mark.parametrize(
    ("source", "place"), list(itertools.product(SOURCES, PLACES)) if SOAK else list(zip(SOURCES, PLACES, strict=True))
)
def test_an_impure_dataset_is_noticed_with_its_index(
    source: str, place: str, loader_at: Callable[..., DataLoader]
) -> None:
    with loader_at(place, trouble_data.impure(source)) as loader:
        [text] = purity_warnings(loader, "purity_failures")
        assert re.search(r"index \d+ \(epoch \d+, step \d+\)", text)
        assert "loader.check()" in text
        assert loader.stats()["purity_failures"] >= 1


@pytest.mark.parametrize("place", PLACES if SOAK else ["unix"])
def test_a_pure_dataset_is_compared_without_a_warning(place: str, loader_at: Callable[..., DataLoader]) -> None:
    with loader_at(place, trouble_data.pure(), shuffle=False) as loader:
        assert purity_warnings(loader, "slices_verified") == []
        assert loader.stats()["slices_verified"] > 0
        assert loader.stats()["purity_failures"] == 0


def test_what_was_compared_counts_over_all_passes() -> None:
    with DataLoader(trouble_data.pure(), 8, num_workers=2, verify=1.0) as loader:
        deadline = time.monotonic() + 30
        while loader.stats()["slices_verified"] <= 96 // 8 and time.monotonic() < deadline:
            assert purity_warnings(loader) == []
        assert loader.stats()["slices_verified"] > 96 // 8, "more than a pass has"


@pytest.mark.usefixtures("without_torch")
def test_two_hosts_of_one_executor_compare_with_each_other_and_one_has_nobody(
    own_server: Callable[..., Server],
) -> None:
    one, other = own_server("one", executors=1), own_server("other", executors=1)
    options: dict[str, Any] = {"secret_file": str(one.secret), "verify": 1.0, "collate_fn": stack_arrays}
    with DataLoader(trouble_data.impure(), 8, workers=one.tcp, **options) as loader:
        assert purity_warnings(loader) == []
        assert loader.stats()["slices_verified"] == 0
    with DataLoader(trouble_data.impure(), 8, workers=f"{one.tcp},{other.tcp}", **options) as loader:
        [text] = purity_warnings(loader, "purity_failures")
        assert "two workers made different data of index" in text


@pytest.mark.parametrize(
    ("row", "kind", "told"),
    [
        (5, "builtins:OSError", "one worker made index 51 (epoch 2, step 7), and another one raised OSError: away"),
        (-1, "builtins:OSError", "one worker made a batch of indices [50, 51] (epoch 2, step 7), and another one"),
        (5, "headrace.errors:ShardError", ""),  # the shard was changed meanwhile
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_row_that_only_one_worker_could_make_is_named_with_what_the_other_one_raised(
    row: int, kind: str, told: str, *, first: bool
) -> None:
    batch = messages.BatchRows(7, 0, 8, 4, 6, [50, 51])
    bundle = Bundle((BatchPlan(2, 7, 0, list(range(46, 54)), 0),))
    worker = a_worker(1)
    request = Request(1, worker, Slice(bundle, 4, 6, whole=False), "rows", 0.0, 0.1)
    request.message = messages.SliceRequest(1, 1, 2, 0, (batch,), whole=False)
    made = messages.Done(1, 8, [], b"", 0.1, 0.1, executor=0, digests=[b"1", b"2"])
    failure = messages.Failure(0, row, messages.RemoteError(kind, "away", ""))
    failed = msgspec.structs.replace(made, executor=1, digests=[], failures=(failure,))
    done, again = (made, failed) if first else (failed, made)
    difference = Verifier(1.0).compare(worker, Check(request, done, 0, b""), again)
    assert (difference.warning() if difference else "").startswith(told)
    assert bool(difference) is bool(told)


@pytest.mark.parametrize("place", PLACES if SOAK else ["two tcp"])
def test_verify_0_compares_nothing(place: str, loader_at: Callable[..., DataLoader]) -> None:
    with loader_at(place, trouble_data.impure(), verify=0) as loader:
        assert purity_warnings(loader) == []
        assert loader.stats()["slices_verified"] == 0


@pytest.mark.parametrize("place", PLACES if SOAK else ["local"])
def test_verify_1_compares_all_but_the_last_ones(place: str, loader_at: Callable[..., DataLoader]) -> None:
    with loader_at(place, trouble_data.pure(), batch_size=2, prefetch_factor=2, verify=1.0) as loader:
        for _ in range(3):
            assert purity_warnings(loader) == []
        stats = loader.stats()
        assert stats["slices_verified"] > 8, "more than those that are always checked"
        assert stats["purity_failures"] == 0


def test_a_single_local_worker_has_nobody_to_compare_with() -> None:
    with DataLoader(trouble_data.impure(), 8, num_workers=1, verify=1.0) as loader:
        assert purity_warnings(loader) == []
        assert loader.stats()["slices_verified"] == 0


@pytest.mark.parametrize("place", PLACES if SOAK else ["unix"])
@pytest.mark.parametrize(
    ("options", "pipeline", "named"),
    [
        ({}, trouble_data.nested, r"a batch of indices \[.*\] \(epoch"),
        (
            {"collate_fn": trouble_data.listed},
            trouble_data.impure,
            r"a batch of indices \[.*\] \(epoch",
        ),
        ({"batch_size": None}, trouble_data.impure, r"index \d+ \(epoch"),
        ({"batch_size": 1}, trouble_data.impure, r"index \d+ \(epoch"),
    ],
    ids=["nested", "own collate", "no batches", "batches of one"],
)
def test_the_place_is_named_however_batches_are_made(
    options: dict[str, Any], pipeline: Callable[[], Any], named: str, place: str, loader_at: Callable[..., DataLoader]
) -> None:
    with loader_at(place, pipeline(), verify=1.0, **options) as loader:
        [text] = purity_warnings(loader, "purity_failures")
        assert re.search(named, text), text


def listed(key: Any) -> list[int]:
    return key.reshape(-1).tolist() if hasattr(key, "reshape") else [key]


def test_slices_that_turn_out_to_be_made_whole_are_counted_when_they_are_asked_for_so() -> None:
    verifier = Verifier(0.000001)
    for _ in range(FIRST):
        assert verifier.wants(0, 0, 0)
        verifier.unwanted()
    assert [verifier.wants(0, step, 0) for step in range(FIRST + 3)] == [True] * FIRST + [False] * 3


@pytest.mark.parametrize("share", [0.000001, 1.0])
def test_checks_of_what_takes_long_wait_until_they_are_a_small_part_of_the_work(share: float) -> None:
    verifier = Verifier(share)
    others = {number: a_worker(number, str(number)) for number in (1, 2)}
    done, asked = messages.Done(1, 8, [], b"", 2.0, 2.0), 0
    for step in range(100):  # slices of 2 s
        bundle = Bundle((BatchPlan(0, step, 0, list(range(8)), 0),))
        request = Request(step, others[1], Slice(bundle, 0, 8, whole=True), "rows", 0.0, 0.1)
        verifier.made(2.0)
        if verifier.wants(0, step, 0):
            verifier.add(Check(request, done, 0, b""))
        while verifier.next(lambda *_: others, 0) is not None:
            asked += 1
        if share < 1:
            assert 2.0 * asked <= CHEAP_SECONDS + CHECK_SHARE * 2.0 * (step + 1) + 0.001
    assert asked == (5 if share < 1 else 100)

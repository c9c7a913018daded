"""The purity check: what depends on more than its place in the plan is noticed and named, with real workers."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trouble_data
from feed_servers import Server

from headrace.feed import DataLoader
from headrace.feed.client.policy import PurityWarning
from headrace.feed.client.verifier import FIRST, Verifier

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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("source", SOURCES)
def test_an_impure_dataset_is_noticed_with_index_and_field(
    source: str, place: str, loader_at: Callable[..., DataLoader]
) -> None:
    with loader_at(place, trouble_data.impure(source)) as loader:
        [text] = purity_warnings(loader, "purity_failures")
        assert re.search(r"index \d+, field batch\['drift'\] \(epoch \d+, step \d+\)", text)
        assert "loader.check()" in text
        assert loader.stats()["purity_failures"] >= 1


@pytest.mark.parametrize("place", PLACES)
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


def test_two_hosts_of_one_executor_compare_with_each_other_and_one_has_nobody(
    own_server: Callable[..., Server],
) -> None:
    one, other = own_server("one", executors=1), own_server("other", executors=1)
    with DataLoader(trouble_data.impure(), 8, workers=one.tcp, secret_file=str(one.secret), verify=1.0) as loader:
        assert purity_warnings(loader) == []
        assert loader.stats()["slices_verified"] == 0
    with DataLoader(
        trouble_data.impure(), 8, workers=f"{one.tcp},{other.tcp}", secret_file=str(one.secret), verify=1.0
    ) as loader:
        [text] = purity_warnings(loader, "purity_failures")
        assert "field batch['drift']" in text


@pytest.mark.parametrize("batch_size", [8, 2, None])
def test_a_row_that_only_one_worker_could_make_is_named_with_what_the_other_one_raised(
    batch_size: int | None, tmp_path: Path
) -> None:
    dataset = trouble_data.RaisesTheSecondTime(11, str(tmp_path / "notes"))
    with DataLoader(dataset, batch_size, num_workers=2, verify=1.0, persistent_workers=True) as loader:
        [text] = purity_warnings(loader, "purity_failures")
    assert re.match(r"one worker made index 11 \(epoch 0, step \d+\), and another one raised OSError: the disk", text)


@pytest.mark.parametrize("place", PLACES)
def test_verify_0_compares_nothing(place: str, loader_at: Callable[..., DataLoader]) -> None:
    with loader_at(place, trouble_data.impure(), verify=0) as loader:
        assert purity_warnings(loader) == []
        assert loader.stats()["slices_verified"] == 0


@pytest.mark.parametrize("place", PLACES)
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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("options", "pipeline", "named"),
    [
        ({}, trouble_data.nested, r"a batch of indices \[.*\], field batch\['inner'\]\[0\]\['drift'\]"),
        (
            {"collate_fn": trouble_data.listed},
            trouble_data.impure,
            r"a batch of indices \[.*\], field batch\['drift'\]",
        ),
        ({"batch_size": None}, trouble_data.impure, r"index \d+, field batch\['drift'\]"),
        ({"batch_size": 1}, trouble_data.impure, r"index \d+, field batch\['drift'\]"),
    ],
    ids=["nested", "own collate", "no batches", "batches of one"],
)
def test_the_field_is_named_however_batches_are_made(
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

"""The keyed permutation."""

from __future__ import annotations

import time

import numpy as np
import pytest

from headrace.feed.plan.orders.order import permute
from patience import allowed


def test_every_value_appears_exactly_once() -> None:
    for n in [*range(1, 70), 127, 128, 129, 255, 256, 257, 1000, 4095, 4096, 4097, 65537, 100_003]:
        assert np.array_equal(np.sort(permute(np.arange(n), n, b"key")), np.arange(n)), n


def test_a_position_has_the_same_value_alone_and_in_company() -> None:
    everything = permute(np.arange(1000), 1000, b"key")
    for position in (0, 1, 499, 999):
        assert permute(np.array([position]), 1000, b"key")[0] == everything[position]


@pytest.mark.promise("feed-guarantees", "order and random numbers stay the same in later versions")
def test_the_permutation_is_pinned_so_that_a_run_can_be_resumed_by_a_later_version() -> None:
    assert permute(np.arange(8), 8, b"3/0").tolist() == [7, 2, 5, 0, 4, 6, 1, 3]


def test_another_key_gives_another_order() -> None:
    assert permute(np.arange(1000), 1000, b"3/0").tolist() != permute(np.arange(1000), 1000, b"3/1").tolist()


def test_every_value_is_equally_likely_at_a_position() -> None:
    n, trials = 16, 8000
    where = np.array([0, 1, 7, 15])
    values = np.array([permute(where, n, f"{k}".encode()) for k in range(trials)])
    counts = np.array([np.bincount(column, minlength=n) for column in values.T])
    chi_squares = (((counts - trials / n) ** 2) / (trials / n)).sum(axis=1)
    assert chi_squares.max() < 37.7  # 99.9 % of the distribution with 15 degrees of freedom; the keys are fixed


def test_neighbours_are_not_correlated() -> None:
    order = permute(np.arange(10_000), 10_000, b"key").astype(float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.05


def test_a_domain_of_a_billion_answers_at_once() -> None:
    begun = time.monotonic()
    values = permute(np.array([0, 1, 10**9 - 1]), 10**9, b"key")
    assert time.monotonic() - begun < allowed(0.5)
    assert len(set(values.tolist())) == 3
    assert all(0 <= value < 10**9 for value in values.tolist())


def test_the_shape_is_kept_and_nothing_is_a_permutation_of_nothing() -> None:
    assert permute(np.arange(6).reshape(2, 3), 10, b"").shape == (2, 3)
    assert permute(np.empty(0, np.int64), 10, b"").shape == (0,)


@pytest.mark.parametrize(("positions", "n"), [([-1], 4), ([4], 4), ([0], 0)])
def test_positions_outside_the_domain_are_refused(positions: list[int], n: int) -> None:
    with pytest.raises(ValueError, match=r"positions must lie in|at least one value"):
        permute(np.array(positions), n, b"")

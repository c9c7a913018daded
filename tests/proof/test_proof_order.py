"""The order of a version never changes; and it is exactly once, also when resumed on another number of ranks."""

from __future__ import annotations

import json

import numpy as np
import order
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keyed_order import keyed_order

from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.plan.orders.order import permute

HINT = (
    "the order of a (seed, epoch) has changed: positions saved by older versions would resume at other samples. "
    "Keep the order, or raise ORDER_VERSION (see order.py)"
)


@pytest.mark.promise("feed-guarantees", "order and random numbers stay the same in later versions")
def test_the_order_is_the_golden_one_of_its_version() -> None:
    expected = json.loads(order.GOLDEN.read_text())
    got = order.golden()
    different = [name for name in expected if got.get(name) != expected[name]]
    assert not different, f"{HINT}: {different[:5]} and {len(different)} in all"
    assert got.keys() == expected.keys()


def test_the_golden_files_are_kept_for_every_version() -> None:
    kept = {path.name for path in order.GOLDEN.parent.iterdir()}
    assert kept == {f"order-v{version}.json" for version in range(1, order.ORDER_VERSION + 1)}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 1000])
def test_the_order_is_the_one_that_is_described(n: int) -> None:
    for key in (b"", b"7/0", b"18446744073709551615/3"):
        assert permute(np.arange(n), n, key).tolist() == keyed_order(n, key)


def positions(plans: list[EpochPlan], epoch: int, first: int, last: int) -> list[tuple[int, int]]:
    """Returns (position, key) of every row that the ranks take in steps first..last-1."""
    taken = []
    for plan in plans:
        for step in range(first, min(last, plan.steps)):
            batch = plan.batch(epoch, step)
            taken += [(batch.position + row, key) for row, key in enumerate(batch.keys)]
    return taken


@pytest.mark.promise("feed-guarantees", "in plan order, whatever happens to workers and messages")
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_every_position_is_taken_once_also_when_resumed_on_another_world_size(data: st.DataObject) -> None:
    per_rank, worlds = data.draw(
        st.sampled_from([(12, (1, 2, 3, 4, 6, 12)), (8, (1, 2, 4, 8)), (30, (1, 2, 3, 5, 6, 10))])
    )
    multiple = data.draw(st.integers(1, 3))
    global_batch = per_rank * multiple
    old, new = data.draw(st.sampled_from(worlds)), data.draw(st.sampled_from(worlds))
    n = data.draw(st.integers(max(worlds), 400))
    drop, shuffle = data.draw(st.booleans()), data.draw(st.booleans())
    seed, epoch = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 1000))

    def ranks(world: int) -> list[EpochPlan]:
        return [EpochPlan(n, global_batch // world, seed, shuffle, drop, rank, world) for rank in range(world)]

    stopped = data.draw(st.integers(0, ranks(old)[0].steps - 1) if ranks(old)[0].steps else st.just(0))
    left = n - stopped * global_batch
    assume(drop or left >= new)  # fewer samples than ranks cannot be shared: who resumes is told so
    taken = positions(ranks(old), epoch, 0, stopped) + positions(ranks(new), epoch, stopped, n)
    expected = n // global_batch * global_batch if drop else n
    assert sorted(position for position, _ in taken) == list(range(expected))
    assert dict(taken) == dict(positions(ranks(1), epoch, 0, n)), "the same samples stand there, whoever takes them"
    if not drop:
        assert sorted(key for _, key in taken) == list(range(n))

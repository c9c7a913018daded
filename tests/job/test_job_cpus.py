"""Which host may use which CPUs of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snippets import TWO

from headrace.engines.local.host_limits import apportion, assign_cpus
from headrace.errors import JobInvalid
from headrace.job import InstanceGroup, Job, load_job
from headrace.job.model.field_types import format_cpu_set, parse_cpu_set


@pytest.mark.parametrize(
    ("text", "ids"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-3,5", (0, 1, 2, 3, 5)), ("5, 0 - 1", (0, 1, 5)), ("2-2,2", (2,))],
)
def test_a_cpu_set_is_ids_and_ranges(text: str, ids: tuple[int, ...]) -> None:
    assert parse_cpu_set(text) == ids


@pytest.mark.parametrize("text", ["", ",", "0,", "a", "3-1", "-1", "0-", "0-1-2", "1.5", "0x1", "٣", "0-999999"])
def test_what_is_no_cpu_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a CPU id|backwards"):
        parse_cpu_set(text)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_written_cpu_set_is_read_as_it_was(ids: set[int]) -> None:
    assert parse_cpu_set(format_cpu_set(tuple(ids))) == tuple(sorted(ids))


def job(counts: dict[str, int], **local: object) -> Job:
    groups = [InstanceGroup(name, "ml.c5.xlarge", count) for name, count in counts.items()]
    return Job("demo", source_dir="c", entry_point="t.py", instance_groups=groups, engines={"local": local})


@pytest.mark.parametrize(
    ("counts", "local", "machine", "expected"),
    [
        # Nothing is said: all hosts may use all.
        ({"a": 1, "b": 1}, {}, 2, [(), ()]),
        # A set is divided evenly, in runs.
        ({"a": 1, "b": 1}, {"cpu_sets": {"a": "0", "b": "1"}}, 2, [(0,), (1,)]),
        ({"a": 2, "b": 1}, {"cpu_sets": {"a": "0-3", "b": "4"}}, 8, [(0, 1), (2, 3), (4,)]),
        ({"a": 2, "b": 1}, {"cpu_sets": {"a": "0-4"}}, 8, [(0, 1, 2), (3, 4), ()]),
        # With fewer CPUs than hosts they share it.
        ({"a": 3, "b": 1}, {"cpu_sets": {"a": "0-1"}}, 2, [(0, 1), (0, 1), (0, 1), ()]),
        # Sets of two groups may have CPUs in common.
        ({"a": 1, "b": 1}, {"cpu_sets": {"a": "0-1", "b": "1"}}, 2, [(0, 1), (1,)]),
        # Shares: in proportion, disjoint, in the order of the job.
        ({"a": 1, "b": 1}, {"cpu_shares": {"a": 1, "b": 1}}, 2, [(0,), (1,)]),
        ({"a": 1, "b": 1}, {"cpu_shares": {"b": 3, "a": 1}}, 4, [(0,), (1, 2, 3)]),
        ({"a": 2, "b": 1}, {"cpu_shares": {"a": 1, "b": 1}}, 8, [(0, 1), (2, 3), (4, 5, 6, 7)]),
        ({"a": 2, "b": 1}, {"cpu_shares": {"a": 1, "b": 1}}, 2, [(0,), (0,), (1,)]),
        ({"a": 1, "b": 1}, {"cpu_shares": {"a": 1000, "b": 1}}, 4, [(0, 1, 2), (3,)]),
        # With fewer CPUs than groups all share all.
        ({"a": 1, "b": 1}, {"cpu_shares": {"a": 9, "b": 1}}, 1, [(), ()]),
    ],
)
def test_hosts_get_their_cpus(
    counts: dict[str, int], local: dict[str, object], machine: int, expected: list[tuple[int, ...]]
) -> None:
    demo = job(counts, **local)
    assert assign_cpus(demo, tuple(range(machine))) == {f"algo-{n}": cpus for n, cpus in enumerate(expected, 1)}


def test_cpus_of_a_machine_with_gaps_are_given_by_their_ids() -> None:
    assert assign_cpus(job({"a": 1, "b": 1}, cpu_shares={"a": 1, "b": 1}), (6, 2)) == {"algo-1": (2,), "algo-2": (6,)}


def test_a_cpu_that_does_not_exist_is_named_with_those_that_do(write: Callable[[str], Path]) -> None:
    text = TWO + "engines:\n  local:\n    cpu_sets:\n      data: 0-2\n      dnn: 7,9\n"
    with pytest.raises(JobInvalid) as caught:
        assign_cpus(load_job(write(text)), (0, 1))
    assert str(caught.value).splitlines() == [
        "job.yaml:10: engines.local.cpu_sets.data: CPU 2 does not exist; this machine has 0-1 (got '0-2')",
        "job.yaml:11: engines.local.cpu_sets.dnn: CPU 7,9 does not exist; this machine has 0-1 (got '7,9')",
    ]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(0, 200))
def test_shares_use_every_cpu_and_leave_nobody_without(weights: list[float], spare: int) -> None:
    total = len(weights) + spare
    seats = apportion(total, weights)
    assert sum(seats) == total
    assert min(seats) >= 1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 5))
def test_shares_that_come_out_even_are_exact(weights: list[int], times: int) -> None:
    assert apportion(sum(weights) * times, weights) == tuple(weight * times for weight in weights)

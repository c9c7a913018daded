"""The verdict as a decision table: its thresholds one by one, and what holds for every input."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from effort import SOAK, number

from headrace.insight import Verdict, VerdictName, Window
from headrace.insight.evidence import (
    CPU_BUSY,
    CROWDED,
    GPU_BUSY,
    GPU_LOW,
    HIGHLY_BOUND,
    LEAST_RECORDS,
    LINK_BUSY,
    NEXT,
    NEXT_APART,
    NEXT_IDLE,
    NEXT_NOT_STARTED,
    NEXT_UNUSED,
    NOT_BOUND,
    SKEW_GAP,
    SPARE,
    STALL_SECONDS,
    STALL_STEPS,
    STRAGGLER,
    Beside,
    Silence,
    Supply,
    Usage,
    VerdictInputs,
    band_of,
)
from headrace.insight.figures.columns import Table
from headrace.insight.figures.figure import FORMULAS, LEAST_VALUES, MOST_VALUES
from headrace.insight.verdict import verdict as decide
from headrace.runs import Stream

WINDOW = Window(100.0, 130.0)
BUSY, SPARING = Supply(97.0, 2.0, 1.0, 10.0), Supply(30.0, 10.0, 60.0, 5.0)
WAITING, RELAXED = (
    {VerdictName.INPUT_BOUND, VerdictName.NETWORK_BOUND},
    {VerdictName.COMPUTE_BOUND, VerdictName.BALANCED},
)


Rank = tuple[Stream, Table]
"""A rank and the rows of its loader."""


def timed(place: str, **columns: Sequence[float]) -> Rank:
    """The rank ``group/host/rank`` with steps, step, wait and, where they were measured, h2d and compute."""
    unknown = [math.nan] * len(columns["step"])
    rows = {"t": range(len(unknown)), "h2d": unknown, "compute": unknown, **columns}
    return Stream(*place.split("/")), Table({name: np.array(column, dtype=float) for name, column in rows.items()})


def inputs(ranks: Sequence[Rank] = (), *others: object, **more: object) -> VerdictInputs:
    return VerdictInputs(dict(ranks), *others, **more)  # type: ignore[arg-type]


def rank(
    number: int, wait: float, *, step: float = 0.1, records: int = 30, host: str = "algo-1", **more: float
) -> Rank:
    """A rank with steps of `step` seconds, `wait` % of them waiting; records of about a second; `more` of each."""
    steps = max(1, round(1 / step))
    length = steps * step
    columns = {"steps": steps, "step": length, "wait": length * wait / 100, **more}
    return timed(f"dnn/{host}/{number}", **{name: [value] * records for name, value in columns.items()})


def judged(*waits: float, supply: Supply | None = None) -> Verdict:
    return decide(inputs(tuple(rank(n, wait) for n, wait in enumerate(waits)), supply, window=WINDOW))


TABLE = [
    ("highly input-bound", judged(43.0, supply=BUSY), VerdictName.INPUT_BOUND, "highly"),
    ("input-bound from 20 %", judged(HIGHLY_BOUND, supply=BUSY), VerdictName.INPUT_BOUND, "highly"),
    ("moderately below it", judged(HIGHLY_BOUND - 0.1, supply=BUSY), VerdictName.INPUT_BOUND, "moderately"),
    ("moderately from 5 %", judged(NOT_BOUND, supply=BUSY), VerdictName.INPUT_BOUND, "moderately"),
    ("balanced below it", judged(NOT_BOUND - 0.1, supply=BUSY), VerdictName.BALANCED, "not"),
    ("workers unknown, waiting", judged(30.0), VerdictName.INPUT_BOUND, "highly"),
    ("workers unknown, not waiting", judged(1.0), VerdictName.COMPUTE_BOUND, "not"),
    ("a fifth to spare", judged(1.0, supply=Supply(80, 15, SPARE - 15)), VerdictName.COMPUTE_BOUND, "not"),
    ("less to spare", judged(1.0, supply=Supply(80.1, 15, SPARE - 15.1)), VerdictName.BALANCED, "not"),
    ("the link is the busiest", judged(30.0, supply=Supply(20, 70, 10, 95)), VerdictName.NETWORK_BOUND, "highly"),
    ("the link is half busy", judged(30.0, supply=Supply(20, 70, 10, LINK_BUSY)), VerdictName.NETWORK_BOUND, "highly"),
    ("the link is less busy", judged(30.0, supply=Supply(20, 70, 10, 49.9)), VerdictName.INPUT_BOUND, "highly"),
    ("the workers are busier", judged(30.0, supply=Supply(90, 5, 5, 80)), VerdictName.INPUT_BOUND, "highly"),
    ("no link: workers of the rank", judged(30.0, supply=Supply(20, 70, 10)), VerdictName.INPUT_BOUND, "highly"),
    ("a busy link hurts nobody", judged(1.0, supply=Supply(20, 70, 10, 95)), VerdictName.COMPUTE_BOUND, "not"),
    ("one rank waits", judged(1.0, 30.0, 0.0, 1.0), VerdictName.SKEWED, "highly"),
    ("all ranks wait", judged(30.0, 31.0, 29.0, 33.0), VerdictName.INPUT_BOUND, "highly"),
    ("one waits, others moderately", judged(60.0, NOT_BOUND), VerdictName.INPUT_BOUND, "highly"),
    ("one waits, others just not", judged(60.0, NOT_BOUND - 0.1), VerdictName.SKEWED, "highly"),
    ("the gap is too small", judged(NOT_BOUND, NOT_BOUND - SKEW_GAP + 0.1), VerdictName.COMPUTE_BOUND, "not"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "name", "band"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(found: Verdict, name: VerdictName, band: str) -> None:
    assert (found.name, found.band) == (name, band)
    assert found.sentence.startswith(name.value)
    assert found.window == WINDOW
    assert not found.inferred


def with_cpu(cpu: float | None, wait: float = 1.1, device: float | None = None) -> VerdictInputs:
    """A rank beside which a loader makes batches at an unknown cost, on a host whose cores are `cpu` % busy."""
    times = rank(0, wait) if device is None else rank(0, wait, compute=device)
    return inputs((times,), window=WINDOW, beside=Beside(cpu, "dnn/algo-1"))


BESIDE = [
    ("all cores are busy", with_cpu(99.0), VerdictName.UNKNOWN),
    ("just busy", with_cpu(CROWDED), VerdictName.UNKNOWN),
    ("a fifth is free", with_cpu(CROWDED - 0.1), VerdictName.COMPUTE_BOUND),
    ("nobody measured the CPU", with_cpu(None), VerdictName.UNKNOWN),
    (
        "ranks without a core each",
        msgspec.structs.replace(with_cpu(29.5), beside=Beside(29.5, "dnn/algo-1", True)),
        VerdictName.UNKNOWN,
    ),
    ("CUDA events tell the compute time", with_cpu(99.0, device=0.9), VerdictName.COMPUTE_BOUND),
    ("waits decide where there are any", with_cpu(99.0, wait=30.0), VerdictName.INPUT_BOUND),
    ("a little less wait than counts", with_cpu(99.0, wait=NOT_BOUND - 0.1), VerdictName.UNKNOWN),
]


@pytest.mark.parametrize(("found", "name"), [row[1:] for row in BESIDE], ids=[row[0] for row in BESIDE])
def test_batches_made_on_busy_cores_of_the_ranks_cannot_be_told_from_computing(
    found: VerdictInputs, name: VerdictName
) -> None:
    judged = decide(found)
    assert judged.name is name
    if name is VerdictName.UNKNOWN:
        assert judged.next == NEXT_APART
        assert "computing and making batches cannot be told apart" in judged.sentence
        assert "(dnn/algo-1)" in judged.sentence
        assert judged.band == ""
        assert "do not add" not in judged.sentence + judged.next
        cpu = {one.name: one.value for one in judged.evidence}.get("cpu")
        assert found.beside is not None
        assert cpu == found.beside.cpu


@pytest.mark.promise("verdicts", "more waiting never makes a waiting job a computing one")
def test_busier_hosts_never_make_an_unknown_job_a_computing_one() -> None:
    generator = random.Random(11)
    for _ in range(number(400, 2000)):
        cpu, wait = generator.uniform(0, 105), generator.choice((0.0, generator.uniform(0, 10), 50.0))
        device = generator.choice((None, None, 0.5))
        before, after = (decide(with_cpu(one, wait, device)) for one in (cpu, generator.uniform(cpu, 105)))
        assert (before.name is VerdictName.UNKNOWN) <= (after.name is VerdictName.UNKNOWN), (cpu, wait, device)
        unmeasured = decide(with_cpu(None, wait, device))
        assert (before.name is VerdictName.UNKNOWN) <= (unmeasured.name is VerdictName.UNKNOWN)
        assert (before.name in WAITING) == (after.name in WAITING)


def test_exactly_5_percent_is_moderately_input_bound() -> None:
    times = timed("a/a/0", steps=(1,) * 4, step=(1.25,) * 4, wait=(0.0625,) * 4)  # no rounding in binary
    found = decide(inputs((times,)))
    assert found.evidence[0].value == NOT_BOUND
    assert (found.name, found.band) == (VerdictName.INPUT_BOUND, "moderately")


def test_the_skewed_rank_is_named_with_its_figures() -> None:
    found = judged(1.0, 30.0, 0.0, 2.0)
    assert found.rank == "dnn/algo-1[1]"
    figures = {one.name: one.value for one in found.evidence}
    assert figures["data_wait_of_worst"] == pytest.approx(30)
    assert figures["data_wait_of_others"] == pytest.approx(1)
    assert figures["data_wait"] == pytest.approx(33 / 4)


def test_all_ranks_of_one_host_that_wait_are_a_skew_of_that_host() -> None:
    ranks = [rank(n, wait, host=host) for n, (host, wait) in enumerate([("a", 0), ("a", 1), ("b", 25), ("b", 28)])]
    found = decide(inputs(tuple(ranks)))
    assert (found.name, found.rank) == (VerdictName.SKEWED, "dnn/b")


def test_a_straggler_is_a_rank_that_computes_longer_while_nobody_waits() -> None:
    steps = [0.1, 0.1, 0.1 * STRAGGLER * 1.001, 0.1]
    slow = decide(inputs(tuple(rank(n, 0.0, step=step) for n, step in enumerate(steps))))
    assert (slow.name, slow.rank, slow.band) == (VerdictName.SKEWED, "dnn/algo-1[2]", "not")
    assert "computes 120.1 ms a step, the median of the others 100.0 ms" in slow.sentence
    steps[2] = 0.1 * STRAGGLER * 0.99
    assert decide(inputs(tuple(rank(n, 0.0, step=s) for n, s in enumerate(steps)))).name in RELAXED
    # In synchronous training the others compute longer because they wait for the rank that waits: no stragglers.
    waits = decide(inputs((rank(0, 30.0), rank(1, 0.0))))
    assert waits.rank == "dnn/algo-1[0]"


def test_measured_device_time_decides_who_is_slow_not_the_rest_of_the_step() -> None:
    def with_device(number: int, device: float) -> Rank:
        return rank(number, 0.0, h2d=0.01, compute=device)

    even = decide(inputs((with_device(0, 0.9), with_device(1, 0.9))))
    assert even.name is VerdictName.COMPUTE_BOUND
    assert {"h2d", "compute"} <= {one.name for one in even.evidence}
    uneven = decide(inputs((with_device(0, 0.5), with_device(1, 0.9))))
    assert uneven.rank == "dnn/algo-1[1]"
    # A rank whose device was not measured is not compared by another measure.
    mixed = decide(inputs((with_device(0, 0.5), rank(1, 0.0))))
    assert mixed.name is VerdictName.COMPUTE_BOUND
    idle = decide(inputs((with_device(0, 0.4),)))
    assert any("the device works only 40 % of the step" in note for note in idle.notes)


def test_a_standstill_is_longer_than_a_minute_and_than_ten_of_the_longest_steps() -> None:
    ranks = (rank(0, 50.0),)

    def after(seconds: float, longest: float) -> Verdict:
        return decide(inputs(ranks, silence=Silence(seconds, longest, rank="dnn/algo-1[0]")))

    assert after(STALL_SECONDS, 1.0).name is VerdictName.STALLED
    assert after(STALL_SECONDS - 1, 1.0).name is VerdictName.INPUT_BOUND
    assert after(STALL_STEPS * 30.0, 30.0).name is VerdictName.STALLED
    assert after(STALL_STEPS * 30.0 - 1, 30.0).name is VerdictName.INPUT_BOUND
    assert after(90.0, 1.0).rank == "dnn/algo-1[0]"
    assert decide(inputs(ranks, silence=Silence(None))).name is VerdictName.INPUT_BOUND
    ended = decide(inputs(silence=Silence(None, cause="stalled: no output for 5 s", rank="dnn/algo-2[1]")))
    assert (ended.name, ended.rank, ended.notes) == (
        VerdictName.STALLED,
        "dnn/algo-2[1]",
        ("stalled: no output for 5 s",),
    )


def test_fewer_than_three_seconds_are_no_measurement() -> None:
    few = decide(inputs((rank(0, 50.0, records=LEAST_RECORDS - 1),)))
    assert few.name is VerdictName.UNKNOWN
    enough = decide(inputs((rank(0, 50.0, records=LEAST_RECORDS),)))
    assert enough.name is VerdictName.INPUT_BOUND
    assert any("too few independent seconds for a confidence range" in note for note in enough.notes)
    assert enough.evidence[0].confidence is None


PUBLISHED = [
    ("seed 000, homogeneous", 45.0, 99.0, VerdictName.INPUT_BOUND),
    ("seed 000, heterogeneous", 74.0, 80.0, VerdictName.BALANCED),
    ("seed 001, heterogeneous", 100.0, 100.0, VerdictName.BALANCED),
    ("GPU busy, CPU idle", 97.0, 30.0, VerdictName.COMPUTE_BOUND),
    ("both idle", 20.0, 30.0, VerdictName.UNKNOWN),
    ("just low", GPU_LOW - 0.1, 90.0, VerdictName.INPUT_BOUND),
    ("just not low", GPU_LOW, 90.0, VerdictName.BALANCED),
    ("just busy", GPU_BUSY, 89.9, VerdictName.COMPUTE_BOUND),
    ("no GPU", None, 99.0, VerdictName.UNKNOWN),
    ("no CPU", 45.0, None, VerdictName.UNKNOWN),
]


@pytest.mark.parametrize(("gpu", "cpu", "name"), [row[1:] for row in PUBLISHED], ids=[row[0] for row in PUBLISHED])
def test_published_figures_without_waits_are_inferred(gpu: float | None, cpu: float | None, name: VerdictName) -> None:
    found = decide(inputs(usage=Usage(gpu, cpu, "data_group")))
    assert found.name is name
    known = gpu is not None and cpu is not None
    assert found.inferred == known
    assert ("(inferred)" in found.sentence) == known
    assert found.band == ""
    if known:
        assert "data_group" in found.sentence
        assert any("weak witness" in note for note in found.notes)


def test_waits_outweigh_what_devices_look_like() -> None:
    found = decide(inputs((rank(0, 0.0),), usage=Usage(45.0, 99.0)))
    assert (found.name, found.inferred) == (VerdictName.COMPUTE_BOUND, False)


def test_the_confidence_range_is_shown_and_a_threshold_inside_it_is_a_warning() -> None:
    generator = random.Random(3)
    wait = tuple(generator.uniform(0.0, 0.1) for _ in range(40))
    times = timed("dnn/algo-1/0", steps=(10,) * 40, step=(1.0,) * 40, wait=wait)
    found = decide(inputs((times,), BUSY, window=WINDOW))
    known = found.evidence[0].confidence
    assert known is not None
    assert known.low < 100 * sum(wait) / 40 < known.high
    assert f"(95 %: {known.low:.1f} .. {known.high:.1f})" in found.sentence
    assert known.low < NOT_BOUND <= known.high
    assert any("crosses 5 %" in note for note in found.notes)
    steady = judged(30.0, supply=BUSY)
    assert not any("crosses" in note for note in steady.notes)


WAITS = (0.0, 1.0, 4.9, 5.0, 9.9, 19.9, 20.0, 60.0, 99.0)
SUPPLIES = [None, BUSY, SPARING, Supply(50, 40, 10, 90), Supply(0, 0, 100, 0), Supply(100, 0, 0)]
USAGES = [None, Usage(45, 99), Usage(None, None), Usage(0, 0), Usage(100, 100)]
SILENCES = [None, Silence(None), Silence(0.0, 0.1), Silence(1e6, 0.1), Silence(1.0, cause="stalled: x")]


def test_every_input_gives_a_verdict_with_a_sentence_a_rule_and_a_next_step() -> None:
    ranks = [(), *((rank(0, wait, records=n),) for wait in WAITS for n in (1, 3, 30))]
    pairs = itertools.product(WAITS if SOAK else (0.0, 5.0, 20.0), WAITS)
    ranks += [(rank(0, a), rank(1, b, records=7)) for a, b in pairs]
    zero = timed("a/a/0", steps=(0,) * 5, step=(0.0,) * 5, wait=(0.0,) * 5)
    ranks += [(zero,), (zero, rank(1, 30.0))]
    for times, supply, usage, silence in itertools.product(ranks, SUPPLIES, USAGES, SILENCES):
        found = decide(inputs(times, supply, usage, silence, WINDOW))
        assert found.sentence
        assert found.formula
        assert found.next == (NEXT_IDLE if found.workers_idle else NEXT[found.name])
        assert (found.name is VerdictName.SKEWED) <= bool(found.rank)
        assert found.inferred <= (not found.band)
        for one in found.evidence:
            assert one.name in FORMULAS
            assert one.value is None or math.isfinite(one.value)
            if one.confidence is not None and one.value is not None:
                assert one.confidence.low <= one.value <= one.confidence.high


def test_advice_to_add_data_workers_and_that_they_have_time_to_spare_exclude_one_another() -> None:
    for wait, produce, link in itertools.product(WAITS, range(0, 101, 10), (None, 0.0, 49.0, 90.0)):
        rest = (100 - produce) / 2
        found = judged(wait, supply=Supply(produce, rest, rest, link))
        idle = found.name is VerdictName.INPUT_BOUND and produce < LINK_BUSY
        assert found.workers_idle is idle
        said = " ".join((found.sentence, found.next, *found.notes))
        assert ("make batches faster: more data workers" in said) == (
            found.name is VerdictName.INPUT_BOUND and not idle
        )
        assert ("asked for too late" in said) == ("raise prefetch_factor" in said) == idle
    unused = decide(inputs((rank(0, 30.0),), Supply(0, 0, 100), window=WINDOW, beside=Beside(10.0, "dnn/algo-1")))
    assert (unused.workers_idle, unused.next) == (False, NEXT_UNUSED)


def test_of_a_run_whose_programs_never_started_nothing_is_judged() -> None:
    found = decide(inputs(not_started="it waits for nodes", usage=Usage(0, 0), silence=Silence(1e6)))
    assert (found.name, found.sentence) == (VerdictName.UNKNOWN, "unknown: it waits for nodes")
    assert (found.next, found.evidence, found.notes) == (NEXT_NOT_STARTED, (), ())


@pytest.mark.promise("verdicts", "more waiting never makes a waiting job a computing one")
def test_more_wait_never_makes_a_waiting_job_a_computing_one() -> None:
    generator = random.Random(7)
    for _ in range(number(500, 3000)):
        count = generator.choice((1, 2, 4, 8))
        work = [generator.uniform(0.5, 1.5) for _ in range(count)]
        waits = [generator.choice((0.0, generator.expovariate(10), generator.uniform(0, 3))) for _ in range(count)]
        supply = generator.choice(SUPPLIES)
        before = _synthetic(work, waits, supply)
        more = [wait + generator.choice((0.0, generator.expovariate(5))) for wait in waits]
        after = _synthetic(work, more, supply)
        if before.name in WAITING:
            assert after.name not in RELAXED, (work, waits, more)
            assert ("not", "moderately", "highly").index(after.band) >= 1


def _synthetic(work: list[float], waits: list[float], supply: Supply | None) -> Verdict:
    ranks = tuple(
        timed(f"g/h/{n}", steps=(10,) * 5, step=(busy + wait,) * 5, wait=(wait,) * 5)
        for n, (busy, wait) in enumerate(zip(work, waits, strict=True))
    )
    return decide(inputs(ranks, supply))


def test_the_bands_are_those_of_tensorflows_profiler() -> None:
    assert [band_of(wait) for wait in (0, 4.99, 5, 19.99, 20, 100)] == [
        "not", "not", "moderately", "moderately", "highly", "highly",
    ]  # fmt: skip


@pytest.mark.promise("verdicts", "the thresholds of the verdicts are those of the page")
def test_the_page_about_verdicts_explains_every_one_with_its_thresholds() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "verdicts.md").read_text().split())  # wherever lines end
    for name in VerdictName:
        assert f"### {name.value}" in page
    for line in (
        f"no step of any loader for at least {STALL_SECONDS:g} s and for {STALL_STEPS:g} times the longest step",
        f"fewer than {LEAST_RECORDS} seconds of metrics",
        f"waits at least {NOT_BOUND:g} % of its step time and {SKEW_GAP:g} points more than all others",
        f"data wait >= {NOT_BOUND:g} %, link >= {LINK_BUSY:g} %, link > produce",
        f"computes at least {STRAGGLER:g} times as long as the median",
        f"data wait < {NOT_BOUND:g} %, blocked + idle < {SPARE:g} %",
        f"below {NOT_BOUND:g} % of the step time *not*, from {NOT_BOUND:g} % *moderately*, from {HIGHLY_BOUND:g} %",
        f"| below {GPU_LOW:g} % | {CPU_BUSY:g} % or more | input-bound |",
        f"no spare cores (CPU >= {CROWDED:g} %)",
        f"| {GPU_BUSY:g} % or more | below {CPU_BUSY:g} % | compute-bound |",
        f"More than {MOST_VALUES} seconds are averaged",
        f"with at least {LEAST_VALUES} seconds",
    ):
        assert line in page, line

"""A quantity is declared once: whoever shows it has the same number, and that of plain sums over the records."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import msgspec
import pytest
from recorded_runs import HOSTS, START, columns_of, host, rank, record

from headrace.cli.views.run_screen import Progress
from headrace.insight import FORMULAS, cost_report, report
from headrace.insight.advise.calibrate import measure
from headrace.insight.charts import Grid, metrics
from headrace.insight.figures import columns
from headrace.insight.figures.columns import (
    COMPUTE,
    DATA_WAIT,
    H2D,
    QUEUE,
    SAMPLES_PER_SECOND,
    STEP_TIME,
    SUPPLY,
    Columns,
    Quantity,
    Table,
    read_columns,
)
from headrace.insight.figures.figure import FIGURES
from headrace.insight.figures.run_files import planned_job
from headrace.runs import LoaderSecond, Metric, Run, Stream, ValueSecond

SEED = 40


def steps(generator: random.Random, count: int = 40) -> list[LoaderSecond]:
    """Records of a loader whose steps, waits and samples follow no rule; the first is warm-up."""
    found = []
    for second in range(count):
        number, length = generator.randint(1, 20), generator.uniform(0.2, 1.5)
        parts = {"steps": number, "samples": 8 * number, "step": length, "wait": length * generator.random()}
        parts |= {"step_min": length / number, "step_max": length / number, "bytes": 100}
        found.append(LoaderSecond(t=START + 2 + second, loader="train", epoch=second // 10, **parts))  # type: ignore[arg-type]
    return found


@pytest.fixture
def records() -> dict[Stream, list[Metric]]:
    generator = random.Random(SEED)
    hosts = {Stream(group, name, "host"): host(0.5, seconds=45) for group, (name,) in HOSTS.items()}
    return {rank(0): [*steps(generator)], rank(1): [*steps(generator)], **hosts}


@pytest.fixture
def run(tmp_path: Path, records: dict[Stream, list[Metric]]) -> Run:
    return record(tmp_path, "job", dict(records), ended=50.0)


@pytest.mark.parametrize("quantity", [STEP_TIME, SAMPLES_PER_SECOND, DATA_WAIT, H2D, COMPUTE, SUPPLY])
def test_the_formula_that_people_read_is_that_of_the_sums(quantity: Quantity) -> None:
    assert FIGURES[quantity.name].formula.startswith(quantity.ratio)


def test_everybody_shows_the_same_data_wait(run: Run, records: dict[Stream, list[Metric]]) -> None:
    kept = [one for found in records.values() for one in found[1:] if isinstance(one, LoaderSecond)]
    wait = 100 * math.fsum(one.wait for one in kept) / math.fsum(one.step for one in kept)
    found, columns = report(run), read_columns(run)
    assert found.training is not None
    (evidence,) = (figure for figure in found.verdict.evidence if figure.name == "data_wait")
    plan = planned_job(run)[0]
    assert found.training.data_wait.value == pytest.approx(wait, rel=1e-12)
    assert evidence.value == found.training.data_wait.value
    assert evidence.confidence == found.training.data_wait.confidence
    assert 100 * measure(plan.groups, columns).wait == pytest.approx(wait, rel=1e-12)
    assert DATA_WAIT.of_records(kept) == pytest.approx(wait, rel=1e-12)
    warm = Columns((stream, one) for stream, found in records.items() for one in found if one not in (found[0],))
    (shares,) = (c for c in metrics("run", warm, Grid(START, 100.0, 1), START + 100).charts if c.name == "step_shares")
    assert shares.lines[0].values == [pytest.approx(wait, rel=1e-5)]  # charts have six digits
    progress = Progress()
    last = [found[-1] for found in records.values() if isinstance(found[-1], LoaderSecond)]
    for stream, one in zip(records, last, strict=False):
        progress.add(stream, one)
    now = 100 * sum(one.wait for one in last) / sum(one.step for one in last)
    rate = sum(one.samples / one.step for one in last)
    assert f"{rate:.1f} samples/s  data wait {now:.1f} %" in progress.text(60.0, last[0].t)


def test_the_costs_of_a_sample_and_of_a_step_follow_from_the_figures_of_the_report(run: Run) -> None:
    training, cost = report(run).training, cost_report(run)
    assert training is not None
    rate, step, samples = cost.per_hour.value, training.step_time.value, training.samples_per_second.value
    assert rate is not None
    assert step is not None
    assert samples is not None
    assert cost.per_step.value == pytest.approx(rate * step / 1000 / 3600)
    assert cost.per_1000_samples.value == pytest.approx(rate * 1000 / samples / 3600)


def test_every_quantity_that_makes_a_figure_has_its_formula() -> None:
    declared = [value for value in vars(columns).values() if isinstance(value, Quantity)]
    assert len(declared) > 25
    assert {one.name for one in declared} <= FORMULAS.keys()


def test_what_was_not_measured_is_in_no_sum(records: dict[Stream, list[Metric]]) -> None:
    half = [
        msgspec.structs.replace(one, queue=2.0 if index % 2 else None)
        for index, one in enumerate(records[rank(0)])
        if isinstance(one, LoaderSecond)
    ]
    tables = columns_of({rank(0): half}).loaders()["train"].values()
    assert QUEUE.of(tables) == pytest.approx(2.0)
    assert [len(QUEUE.rows(table).t) for table in tables] == [20]
    assert SAMPLES_PER_SECOND.of([]) is None


def test_a_run_s_columns_hold_what_its_records_say(records: dict[Stream, list[Metric]]) -> None:
    columns = columns_of(records)
    assert columns.records == sum(map(len, records.values()))
    assert list(columns.loaders()["train"]) == [rank(0), rank(1)]
    table = columns.loaders()["train"][rank(1)]
    assert isinstance(table, Table)
    for name in ("t", "epoch", "steps", "wait", "bytes"):
        assert table[name].tolist() == [getattr(one, name) for one in records[rank(1)]]
    assert {epoch: len(rows) for epoch, rows in table.parted("epoch").items()} == dict.fromkeys(range(4), 10)
    assert [stream.host for stream in columns.streams("host")] == ["algo-1", "algo-2"]


@pytest.mark.parametrize(("field", "number"), [("steps", 10**400), ("epoch", -(10**308)), ("samples", 10**320)])
def test_a_number_that_no_double_holds_is_damage_and_the_rest_is_read(run: Run, field: str, number: int) -> None:
    file = run.paths.metrics(rank(0))
    lines = file.read_text().splitlines()
    file.write_text("\n".join((*lines[:5], json.dumps(json.loads(lines[5]) | {field: number}), *lines[6:])) + "\n")
    found = report(run)
    assert any("more than 308 digits" in note for note in found.notes)
    assert found.training is not None
    assert cost_report(run).epochs
    assert Columns().records < read_columns(run).records == 40 + 40 + 45 + 45 - 1


def test_values_whose_sum_no_double_holds_are_shown_as_far_as_they_are(tmp_path: Path) -> None:
    parts = {"name": "loss", "stream": "0", "count": 1, "last": 1e308, "low": 1e308, "high": 1e308, "total": 1e308}
    values = [ValueSecond(t=START + second, **parts) for second in range(3)]  # type: ignore[arg-type]
    (loss,) = report(record(tmp_path, "job", {rank(0): values}, ended=50.0)).values
    assert (loss.count.value, loss.max.value, loss.mean.value) == (3, 1e308, math.inf)

"""Sheets, Markdown and pages of reports and comparisons: the JSON has all they show, and a run's text is no markup."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from recorded_runs import FEED, START, feed, host, loader, rank, read_charts, record

from headrace.insight import Comparison, Report, compare, report
from headrace.insight.charts import MOST_POINTS, Line, Metrics, report_charts
from headrace.insight.figures.columns import Columns
from headrace.insight.figures.figure import Confidence, Figure, Spread, differ
from headrace.insight.render.document import Cell, markdown
from headrace.insight.render.html import page as html_page
from headrace.insight.render.plain_text import number, quantity, spread
from headrace.insight.render.run_documents import (
    compared_table,
    comparison_document,
    comparison_tables,
    letter,
    report_document,
    report_tables,
    stacked_tables,
)
from headrace.insight.render.svg import HEIGHT, WIDTH, Trace, chart, compared_charts, nice_ticks, run_charts
from headrace.runs import Cause, CauseKind, GpuUse, LoaderSecond, Metric, Run, Status, Stream, ValueSecond
from page_reader import Reader

HOSTS = {Stream("dnn_group", "algo-2", "host"): host(0.9), Stream("data_group", "algo-1", "host"): host(0.4)}


def report_page(found: Report, metrics: Metrics) -> str:
    return html_page(found.run_id, report_document(found, run_charts(found, metrics)))


def comparison_page(found: Comparison, metrics: list[Metrics]) -> str:
    document = comparison_document(found, [compared_table(found)], compared_charts(found, metrics))
    return html_page(", ".join(run.run_id for run in found.runs), document)


def report_markdown(found: Report) -> str:
    return markdown(report_document(found))


def comparison_markdown(found: Comparison) -> str:
    return markdown(comparison_document(found))


EVIL = '<script>alert("1")</script> | `x` & "y"'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("runs")
    metrics = {rank(0): loader(0.01, seed=4), FEED: feed(0.5, 0.2, link=0.1), **HOSTS}
    return (
        record(folder, "homogeneous", {rank(0): loader(0.5, step=0.2), **HOSTS}),
        record(folder, "heterogeneous", metrics),
    )


@pytest.fixture(scope="module")
def slow(runs: tuple[Run, Run]) -> Report:
    return report(runs[0])


@pytest.fixture(scope="module")
def fast(runs: tuple[Run, Run]) -> Report:
    return report(runs[1])


@pytest.fixture(scope="module")
def compared(slow: Report, fast: Report) -> Comparison:
    return compare([slow, fast])


def test_a_comparison_marks_what_is_beyond_noise_and_says_so(compared: Comparison) -> None:
    rows = {(row.name, row.group): row.cells[1] for row in compared.rows}
    assert rows["step_time", ""].differs is True
    assert rows["step_time", ""].ratio == pytest.approx(0.5, rel=0.05)
    assert rows["data_wait", ""].differs is True
    assert rows["cpu", "dnn_group"].differs is False
    assert rows["time_to_train", ""].differs is None
    per_sample = rows["cost_per_1000_samples", ""]
    assert per_sample.differs is True
    assert per_sample.figure.confidence is not None
    assert any("times as fast, beyond the noise of the steps" in line for line in compared.summary)
    assert any("cheaper, beyond the noise" in line for line in compared.summary)
    assert msgspec.json.decode(msgspec.json.encode(compared), type=Comparison) == compared


def test_runs_that_do_not_differ_are_said_not_to(tmp_path: Path) -> None:
    reports = [report(record(tmp_path, f"job-{n}", {rank(0): loader(0.4, seed=n), **HOSTS})) for n in range(2)]
    found = compare(reports)
    (step,) = [row for row in found.rows if row.name == "step_time"]
    assert step.cells[1].differs is False
    assert any("no difference beyond the noise of the steps" in line for line in found.summary)
    assert "within noise" in comparison_markdown(found)
    assert "beyond noise" not in str(comparison_tables(found)[1].rows)


def test_short_runs_say_that_their_noise_is_not_known(tmp_path: Path) -> None:
    reports = [report(record(tmp_path, f"job-{n}", {rank(0): loader(0.4, seconds=5, seed=n)})) for n in range(2)]
    found = compare(reports)
    assert {cell.differs for row in found.rows for cell in row.cells} == {None}
    noisy = {row.name for row in found.rows if row.cells[1].noise}
    assert noisy == {"step_time", "samples_per_second", "data_wait", "cost_per_1000_samples", "cost_per_step"}
    assert "not known: too few independent seconds" in comparison_markdown(found)
    assert any("not known: too few independent seconds" in line for line in found.summary)


def test_every_row_of_the_published_result_tables_is_there(compared: Comparison) -> None:
    assert [(row.name, row.group) for row in compared.rows] == [
        ("time_to_train", ""),
        ("step_time", ""),
        ("samples_per_second", ""),
        ("data_wait", ""),
        ("cpu", "data_group"),
        ("cpu", "dnn_group"),
        ("cpu_per_1000_samples", "data_group"),
        ("cpu_per_1000_samples", "dnn_group"),
        ("cost_per_hour", ""),
        ("cost_per_1000_samples", ""),
        ("cost_per_step", ""),
        ("cost", ""),
    ]
    values = {(row.name, row.group): [cell.figure.value for cell in row.cells] for row in compared.rows}
    assert all(None not in found for found in values.values())


def numbers(value: object) -> set[str]:
    """The numbers of every figure of a report or comparison, as people see them."""
    if isinstance(value, Figure):
        return {number(value), *re.findall(r"[\d.]+", spread(value))}
    if isinstance(value, msgspec.Struct):
        return {found for name in value.__struct_fields__ for found in numbers(getattr(value, name))}
    if isinstance(value, (list, tuple)):
        return {found for item in value for found in numbers(item)}
    return set()


def test_every_number_of_the_figures_is_a_field_of_the_json(compared: Comparison, fast: Report) -> None:
    known = numbers(compared)
    for row in comparison_tables(compared)[1].rows:
        assert {row[1], row[3]} <= known | {"-"}
    mine = numbers(fast)
    for sheet in report_tables(fast):
        if sheet.title == "data workers":
            shown = [cell.split(" [")[0] for cell in sheet.rows[0][4:]]
            assert len(shown) >= 6
            assert set(shown) <= mine


def test_many_runs_stand_one_below_the_other_with_the_same_cells(compared: Comparison) -> None:
    _, beside = comparison_tables(compared)
    verdicts, below = stacked_tables(compared)
    assert (len(verdicts.rows), below.columns) == (2, ("figure", "run", "value", "spread", "ratio", ""))
    for wide, first, second in zip(beside.rows, below.rows[::2], below.rows[1::2], strict=True):
        assert wide == (first[0], *first[2:4], *second[2:])
        assert (first[1], second[:2]) == ("A", (first[0], "B"))
        assert first[4:] == ("", "")
    strong = [
        [cell for row in made.rows for cell in row if isinstance(cell, Cell) and cell.strong]
        for made in (below, beside)
    ]
    assert strong[0] == strong[1] != []
    assert [row[:2] for row in verdicts.rows] == [("A", compared.runs[0].run_id), ("B", compared.runs[1].run_id)]


def test_the_letters_of_runs_go_on_behind_z() -> None:
    assert [letter(index) for index in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


def test_gpu_use_is_compared_where_there_is_a_gpu(tmp_path: Path) -> None:
    trainer = Stream("dnn_group", "algo-2", "host")
    runs = [
        record(tmp_path, f"job-{use:.0f}", {rank(0): loader(0.4), **HOSTS, trainer: host(0.9, gpu=use)})
        for use in (45.0, 74.0)
    ]
    reports = [report(run) for run in runs]
    found = compare(reports)
    ((name, cells),) = [(row.group, row.cells) for row in found.rows if row.name == "gpu_use"]
    assert name == "dnn_group"
    assert [cell.figure.value for cell in cells] == [45, 74]
    assert cells[1].differs is True
    page = comparison_page(found, list(map(read_charts, runs, reports)))
    assert "GPU of dnn_group" in page
    assert ", 34 points, 45.0 % to 45.0 %" in page
    assert ", 34 points, 74.0 % to 74.0 %" in page


def test_metrics_of_the_logs_have_a_table(tmp_path: Path) -> None:
    losses = [
        ValueSecond(t=START + n, name="loss", stream="0", count=2, last=1.5 - n / 10, low=1.0, high=2.0, total=3.0)
        for n in range(5)
    ]
    run = record(tmp_path, "job", {rank(0): loader(0.4), Stream("dnn_group", "algo-2", "host"): [*host(0.9), *losses]})
    (sheet,) = [one for one in report_tables(report(run)) if one.title == "metrics of the logs"]
    assert sheet.columns == ("metric", "programs", "found", "last", "least", "greatest", "mean")
    assert sheet.rows == (("loss", "dnn_group/algo-2[0]", "10", "1.1", "1", "2", "1.5"),)


@pytest.fixture(scope="module")
def pages(runs: tuple[Run, Run], slow: Report, fast: Report, compared: Comparison) -> dict[str, str]:
    charts = list(map(read_charts, runs, (slow, fast)))
    return {
        "report": report_page(fast, charts[1]),
        "comparison": comparison_page(compared, charts),
        "slow": report_page(slow, charts[0]),
    }


def test_pages_are_whole_and_fetch_nothing(pages: dict[str, str]) -> None:
    for page in pages.values():
        found = Reader(page)
        assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in found.tags}
        for _, attributes in found.tags:
            assert not {"src", "href", "onload", "onclick"} & attributes.keys()
        assert "url(" not in page
        assert "default-src 'none'" in page


def test_charts_have_finite_points_inside_their_frame(pages: dict[str, str]) -> None:
    drawn = re.findall(r'<svg class="chart".*?</svg>', pages["comparison"], re.S)
    assert len(drawn) == 4  # step time, data wait, CPU of two groups
    for svg in drawn:
        paths = [
            path.get("d", "") for path in ElementTree.fromstring(svg).iter("path") if "line" in path.get("class", "")
        ]
        assert len(paths) == 2
        for path in paths:
            pairs = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)
            assert len(pairs) >= 20
            assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in pairs)
            assert not re.search(r"nan|inf", path)


def test_the_verdict_comes_first(pages: dict[str, str], fast: Report) -> None:
    words = "".join(Reader(pages["report"]).words)
    assert words.index(fast.verdict.sentence) < words.index("Instance groups")
    assert fast.verdict.formula in words
    assert fast.verdict.next in words


def test_text_of_a_run_is_never_markup(tmp_path: Path) -> None:
    cause = Cause(CauseKind.HELPER_FAILED, EVIL, "dnn_group", "algo-2", "0")
    run = record(tmp_path, "job", {rank(0): loader(0.4)}, status=Status.FAILED, cause=cause)
    found = report(run)
    named = msgspec.structs.replace(found, job_name=EVIL, run_id=EVIL, notes=(EVIL,))
    charts = read_charts(run, named)
    for page in (report_page(named, charts), comparison_page(compare([named, named]), [charts, charts])):
        assert "<script" not in page
        assert EVIL in "".join(Reader(page).words)
    for text in (report_markdown(named), comparison_markdown(compare([named, named]))):
        assert "<script" not in text
        assert " | `" not in text


def test_markdown_tables_have_a_cell_for_every_column(compared: Comparison, fast: Report) -> None:
    for text in (comparison_markdown(compared), report_markdown(fast)):
        tables = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
        assert len(tables) >= 2
        for table in tables:
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(widths) == 1
    assert "**beyond noise**" in comparison_markdown(compared)


def test_a_run_without_any_metric_has_pages_too(tmp_path: Path) -> None:
    run = record(tmp_path, "empty", {})
    empty = report(run)
    none = read_charts(run, empty)
    pages = (report_page(empty, none), comparison_page(compare([empty, empty]), [none, none]))
    for text in (*pages, report_markdown(empty)):
        assert "unknown" in text
        assert "<figure" not in text


def test_charts_of_a_report_leave_the_warm_up_out_and_keep_sums_and_peaks(fast: Report) -> None:
    columns = Columns()
    train = loader(0.4, seconds=10_000, noise=0.0)
    train[777] = msgspec.structs.replace(train[777], step=9.0, steps=10, wait=9.0)
    train[900] = msgspec.structs.replace(train[900], step=0.0, steps=0, wait=0.0)  # a second without a step
    columns.take((rank(0), one) for one in train)
    columns.take((rank(0), msgspec.structs.replace(one, loader="validation", step=99.0)) for one in loader(0.4))
    found = report_charts(fast, columns)
    assert len(found.t) <= MOST_POINTS
    assert [chart.name for chart in found.charts] == ["step_time", "data_wait"]
    for each, usual, peak in zip(found.charts, (100, 40), (900, 100), strict=True):
        (line,) = each.lines
        assert line.low is not None
        assert line.high is not None
        low, high, values = ([one for one in found if one is not None] for found in (line.low, line.high, line.values))
        assert (min(low), max(high)) == (usual, peak)
        assert usual < max(values) < 1.4 * usual


def test_the_band_of_a_group_s_gpus_is_over_the_gpus(fast: Report) -> None:
    columns = Columns()
    gpus = tuple(
        GpuUse(index=index, name="A10G", use=use, memory=1, memory_total=2) for index, use in enumerate((10, 90))
    )
    trainer = Stream("dnn_group", "algo-2", "host")
    columns.take((trainer, msgspec.structs.replace(one, gpus=gpus)) for one in host(0.5))
    ((line,),) = [chart.lines for chart in report_charts(fast, columns).charts if chart.name == "gpu"]
    assert line.low is not None
    assert line.high is not None
    assert (line.low[0], line.values[0], line.high[0]) == (10, 50, 90)


def test_a_line_is_broken_where_nothing_was_measured() -> None:
    times = [float(second) for second in range(110)]
    line = Line("a", "g", [1.0 if second < 10 or second >= 100 else None for second in range(110)])
    metrics = Metrics("r", 0.0, 110.0, 1.0, times, 20, (), ())
    trace = Trace.of(line, metrics, "a", 0.0, 0)
    assert (trace.t[0], trace.t[-1], len(trace.t)) == (0.5, 109.5, 20)
    svg = chart("CPU", "%", [trace])
    (path,) = re.findall(r'class="line s0" d="(M[^"]*L[^"]*)"', svg)
    assert path.count("M") == 2
    assert chart("CPU", "%", []) == ""


@pytest.mark.parametrize("high", [0.001, 0.9, 1, 7, 99.9, 250, 12_345, 1e7])
def test_ticks_are_round_few_and_inside(high: float) -> None:
    ticks = nice_ticks(0.0, high)
    assert 3 <= len(ticks) <= 8
    assert ticks[0] == 0
    assert ticks[-1] <= high * 1.0001


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (191.96, "ms", "192.0 ms"),
        (0.35, "%", "0.35 %"),
        (567.7, "1/s", "567.7"),
        (69.0, "1", "69"),
        (1.66, "1", "1.7"),
        (3072.0, "bytes", "3.0 KiB"),
        (5e8, "bytes", "477 MiB"),
        (12.0, "bytes", "12 B"),
        (10.67, "bytes", "10.7 B"),
        (0.00126, "USD", "0.00126 USD"),
        (37.688, "USD/hour", "37.69 USD/hour"),
    ],
)
def test_numbers_have_their_unit(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_spread_has_the_digits_of_its_figure() -> None:
    assert spread(Figure("step_time", "ms", 109.9, None, Spread(102.14, 117.0, 9))) == "[102.1 .. 117.0]"
    assert spread(Figure("step_time", "ms", 1.0)) == ""
    assert number(Figure("step_time", "ms", None)) == "-"


@pytest.mark.parametrize("seed", range(12))
def test_figures_of_the_same_seconds_agree_on_what_is_noise(tmp_path: Path, seed: int) -> None:
    noise = (0.02, 0.1, 0.3)[seed % 3]
    lengths = (0.1, 0.1 * (1 + 0.02 * seed))
    records = [loader(0.4, step=step, seconds=20, noise=noise, seed=10 * seed + n) for n, step in enumerate(lengths)]
    found = compare([report(record(tmp_path, f"job-{n}", {rank(0): one})) for n, one in enumerate(records)])
    said = {row.name: (row.cells[1].differs, row.cells[1].noise) for row in found.rows}
    names = ("step_time", "samples_per_second", "cost_per_1000_samples", "cost_per_step")
    assert len({said[name] for name in names}) == 1, said
    ranges = [cell.figure.confidence for row in found.rows for cell in row.cells]
    assert all(one.low >= 0 and one.freedom >= 2 for one in ranges if one is not None)


def test_where_samples_were_not_counted_their_cost_is_a_dash_with_a_reason(tmp_path: Path) -> None:
    records: list[Metric] = [
        msgspec.structs.replace(one, samples=0) for one in loader(0.4) if isinstance(one, LoaderSecond)
    ]
    found = report(record(tmp_path, "scalars", {rank(0): records}))
    rows = {row[0]: row for sheet in report_tables(found) for row in sheet.rows}
    assert rows["cost of 1,000 samples"][1] == "-"
    assert "do not tell how many samples" in rows["cost of 1,000 samples"][3]
    assert rows["cost of a step"][1] != "-"
    assert found.cost is not None
    assert [epoch.samples for epoch in found.cost.epochs] == [None]
    assert found.training is not None
    assert found.training.samples.value is None
    both = compare([found, found])
    (row,) = [row for row in both.rows if row.name == "cost_per_1000_samples"]
    assert [(cell.figure.value, cell.ratio, cell.noise) for cell in row.cells] == [(None, None, "")] * 2


def test_a_difference_of_times_is_one_of_rates_too_though_rates_are_farther_from_normal(slow: Report) -> None:
    def noisy(milliseconds: float) -> Report:
        """20 ms of error; as rates the same values would lie within the noise of each other."""
        time = Figure("step_time", "ms", milliseconds, confidence=Confidence(0.0, 300.0, 20.0, 20.0))
        rate = 1000 / milliseconds
        same = Confidence(0.0, 20.0, 20.0 * rate / milliseconds, 20.0)
        assert slow.training is not None
        assert slow.cost is not None
        training = msgspec.structs.replace(
            slow.training, step_time=time, samples_per_second=Figure("samples_per_second", "1/s", rate, confidence=same)
        )
        per_sample = Figure("cost_per_1000_samples", "USD", milliseconds / 1000)
        cost = msgspec.structs.replace(slow.cost, per_1000_samples=per_sample)
        return msgspec.structs.replace(slow, training=training, cost=cost)

    a, b = noisy(100.0), noisy(160.0)
    rates = [one.training.samples_per_second for one in (a, b) if one.training is not None]
    (first, known_a), (second, known_b) = [(one.value or 0.0, one.confidence) for one in rates]
    assert known_a is not None
    assert known_b is not None
    assert not differ(first, known_a, second, known_b), "or the test tells nothing"
    rows = {row.name: row.cells[1].differs for row in compare([a, b]).rows}
    assert [rows[name] for name in ("step_time", "samples_per_second", "cost_per_1000_samples")] == [True] * 3

"""Tables on terminals of any width and on a pipe: every value is there, whole."""

from __future__ import annotations

import io
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import test_cli_cost
from command_line import Cli
from rich.cells import cell_len
from test_cli_runs import make

from headrace.cli.main import invoke
from headrace.cli.views.run_tables import metrics_document
from headrace.cli.views.table import Columns, console
from headrace.cli.views.table import show as show_document
from headrace.insight.charts import Chart, Line, Metrics
from headrace.insight.render.document import Sentence, Table, document, section, table
from headrace.runs import Damage, EventWriter, LogWriter, RunPaths, Stream, event_text
from headrace.runs.events import LeftOut, MetricsLeftOut

Show = Callable[..., str]
run = test_cli_cost.run  # the fixture


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def _plain(out: io.StringIO) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", out.getvalue())


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Show:
    """Runs a command in this process, on a terminal of some width; on a pipe for width 0. Returns what it wrote."""

    def run_it(width: int, *arguments: str) -> str:
        out = _Screen() if width else io.StringIO()
        monkeypatch.setenv("HEADRACE_HOME", cli.env["HEADRACE_HOME"])
        monkeypatch.setenv("COLUMNS", str(width or 80))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", out)
        assert invoke(arguments) == 0
        return _plain(out)

    return run_it


def _squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


WIDTHS = (0, 60, 80, 100)
SHORT = 24


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_on_a_terminal_of_any_width_or_on_a_pipe(show: Show, cli: Cli, run: str, width: int) -> None:
    name = "a-job-with-a-rather-long-name-to-be-shown-in-a-table"
    make(cli, name)
    make(cli, "fast", wait=0.25)
    for arguments in (
        ("report", run),
        ("compare", name, "fast", run),
        ("cost", run),
        ("cost", run, "--by", "step"),
        ("metrics", name),
        ("ps", "--all"),
        ("status", name),
        ("timeline", run),
        ("prices",),
    ):
        shown = show(width, *arguments)
        assert "…" not in shown
        assert "..." not in shown
        assert not width or max(map(cell_len, shown.splitlines())) <= width
        assert width or not re.search(" $", shown, re.MULTILINE), "no blanks at the ends of lines"
        # What a table shows does not depend on the width: the same characters, but for names, spaces and order.
        whole, here = show(0, *arguments), _squeezed(shown)
        for cell in {cell for line in whole.splitlines() for cell in re.split(r"\s{2,}", line.strip())}:
            assert _squeezed(cell) in here, (arguments, cell)
            # A narrow terminal folds words, not what is as short as a figure and its range.
            assert len(cell) > SHORT or any(cell in line for line in shown.splitlines()), (arguments, cell)


@pytest.mark.parametrize("width", [100, 130, 0])
def test_figures_of_runs_with_long_names_are_lines_of_a_table_in_a_hundred_columns(
    show: Show, cli: Cli, width: int
) -> None:
    names = [make(cli, f"a-job-with-a-rather-long-name-to-be-shown-{index}").id for index in range(2)]
    shown = show(width, "compare", *names)
    for letter, name in zip("AB", names, strict=True):
        assert re.search(rf"^{letter} +{name}", shown, re.MULTILINE)
    rows = [line for line in shown.splitlines() if line.startswith("step time")]
    counts = [row.count("100.0 ms") for row in rows]
    assert counts == ([1, 1] if width == 100 else [2]), "side by side where there is room"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_that_a_table_takes_from_the_json_is_shown(show: Show, width: int) -> None:
    prices = json.loads(show(width, "prices", "--output", "json"))
    shown = _squeezed(show(width, "prices"))
    assert len({price["region"] for price in prices}) > 3
    for price in prices:
        for value in (price["instance_type"], price["region"], f"{price['price']:g}", price["source"]):
            assert _squeezed(value) in shown


def test_a_row_on_a_pipe_is_one_line_however_wide(show: Show) -> None:
    prices = json.loads(show(0, "prices", "--output", "json"))
    rows = [line for line in show(0, "prices").splitlines() if line.startswith("ml.")]
    assert len(rows) == len(prices)
    assert sum("ap-southeast-1" in line for line in rows) == sum(p["region"] == "ap-southeast-1" for p in prices) > 0


def _drawn(made: Table, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    out = _Screen()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out)
    console().print(Columns(made))
    return _plain(out).splitlines()


def test_a_wide_table_folds_words_and_else_becomes_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "the words of this sentence go on below each other, in their column"
    words = table(("host", "why"), [("algo-1", sentence)])
    assert _drawn(words, 44, monkeypatch) == [
        "host    why",
        "algo-1  the words of this sentence go on",
        "        below each other, in their column",
    ]
    rows = [("step time", "12.5 ms", "[11.9 .. 13.0]", "6.25 ms", "[5.9 .. 6.4]"), ("steps", "400", "", "380", "")]
    numbers = table(("", "run-a", "spread", "run-b", ""), rows, right=("run-a", "run-b"))
    assert _drawn(numbers, 80, monkeypatch) == [
        "             run-a  spread            run-b",
        "step time  12.5 ms  [11.9 .. 13.0]  6.25 ms  [5.9 .. 6.4]",
        "steps          400                      380",
    ]
    assert _drawn(numbers, 40, monkeypatch) == [
        "step time",
        "run-a   12.5 ms",
        "spread  [11.9 .. 13.0]",
        "run-b   6.25 ms  [5.9 .. 6.4]",
        "",
        "steps",
        "run-a   400",
        "run-b   380",
    ]
    metric = "top5_accuracy_of_validation"
    named = table(("rank", metric, "cost"), [("1", "0.93", "0.10"), ("2", "0.92", "0.08")])
    assert _drawn(named, 25, monkeypatch)[:3] == ["rank", "  1", metric[:25]], "no name leaves room for values"
    long = table(("rank", 3 * metric, "cost"), [("1", "0.93", "0.10"), ("2", "0.92", "0.08")])
    lines = _drawn(long, 60, monkeypatch)
    assert lines[:5] == ["rank  1", (3 * metric)[:60], (3 * metric)[60:], "      0.93", "cost  0.10"]


def test_a_sentence_of_detail_goes_on_below_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    out = _Screen()
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out)
    show_document(document(section(Sentence("next: make batches faster, or make fewer", detail=True))))
    assert _plain(out).splitlines() == ["  next: make batches faster,", "  or make fewer"]


def _words(chance: random.Random, length: int) -> str:
    return "".join(chance.choices("ab 1", k=length)).strip()


@pytest.mark.parametrize("seed", range(20))
def test_no_cell_of_any_table_is_broken_in_eighty_columns(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    widths: list[int] = []
    while sum(widths) + 2 * len(widths) <= 80 or chance.random() < 0.2:  # a little wider than the terminal, or much
        widths.append(chance.choice((5, 8, SHORT)))
    rows = [
        ["".join(chance.choices("ab 1", k=chance.randrange(1, width + 1))).strip() for width in widths]
        for _ in range(9)
    ]
    names = [f"name {index}" for index in range(len(widths))]
    lines = _drawn(table(names, rows, chance.sample(names[:-1], len(names) // 2)), 80, monkeypatch)
    assert max(map(cell_len, lines)) <= 80
    for cell in {cell for row in rows for cell in row}:
        assert any(cell in line for line in lines), cell


COMMANDS = ["report", "compare", "prices", "metrics", "cost", "logs", "--help", "--version"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone_ends_every_command_with_141(cli: Cli, run: str, command: str) -> None:
    arguments = {"prices": (), "--help": (), "--version": (), "compare": (run, run)}.get(command, (run,))
    with LogWriter(RunPaths(cli.runs / run).log(Stream("dnn", "algo-1", "0"))) as log:
        for number in range(20_000 if command == "logs" else 0):
            log.write_line("o", b"line %d" % number)
    child = cli.start(command, *arguments)
    assert child.stdout is not None
    assert child.stderr is not None
    with child:
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(30) == 141


def test_metrics_show_the_least_and_the_greatest_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (Line("train", "", [5.0, None, 4.0], [1.5, None, 3.0], [6.0, None, 9.5]), Line("eval", "", [7.0, 8.0, 7.5]))
    chart = Chart("step_time", "Step time", "ms", "", lines)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    damage = Damage("metrics/dnn/algo-1/0.jsonl", 5, "damaged line left out")
    show_document(metrics_document(Metrics("j", 0.0, 6.0, 2.0, [0.0, 2.0, 4.0], 9, (chart,), (), (damage,))))
    assert "note: metrics/dnn/algo-1/0.jsonl, line 5: damaged line left out" in out.getvalue()
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert rows[1][:7] == ["Step", "time,", "ms", "train", "1.5", "4", "9.5"]
    assert rows[2][:4] == ["eval", "7", "7.5", "8"]
    assert "note: least and greatest of Step time: of values of 2 s each" in out.getvalue()


def test_metrics_refuse_what_is_no_stretch_of_time_and_say_when_one_is_empty(cli: Cli, show: Show) -> None:
    make(cli, "j")
    for value in ("nan", "inf", "-1e400"):
        refused = cli("metrics", "j", f"--start={value}")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert re.match(r"error: start is (nan|inf|-inf), which is not a time\nhint: ", refused.stderr)
    refused = cli("metrics", "j", "--start", "1795201265", "--end", "1795201264")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: start (1795201265) is after end (1795201264)\nhint: ")
    empty = show(0, "metrics", "j", "--start", "1795300000")
    assert "note: nothing was recorded in this stretch; the run has records from 1795201261 s to" in empty
    assert "no loader reported" not in empty
    later = show(0, "metrics", "j", "--start", "1795201266", "--points", "2000")
    assert "note: step time, data wait, samples/s: no record in this stretch" in later


def test_a_run_without_a_readable_header_is_mentioned_by_ps(cli: Cli) -> None:
    make(cli, "good")
    (make(cli, "bad").header).write_text("{")
    shown = cli("ps", "--all")
    assert shown.returncode == 0
    assert "bad" not in shown.stdout
    assert re.search(r"^headrace: .*/bad-.*/run.json: cannot be read: ", shown.stderr)
    assert cli("ps").stderr == ""


def test_a_request_that_is_nested_too_deeply_is_left_out_of_the_description(cli: Cli) -> None:
    paths = make(cli, "j")
    for text in ("[" * 100_000, '{"Environment": ' + '{"a": ' * 300 + "1" + "}" * 301, "[1]"):
        paths.request.write_text(text)
        described = cli("status", "j", "--output", "json")
        assert (described.returncode, described.stderr) == (0, "")
        assert "Environment" not in json.loads(described.stdout)
    paths.request.write_text('{"Environment": {"a": "b"}}')
    assert json.loads(cli("status", "j", "--output", "json").stdout)["Environment"] == {"a": "b"}


def test_the_name_of_a_file_tells_its_format(cli: Cli, show: Show, tmp_path: Path) -> None:
    make(cli, "j")
    begins = {"a.html": "<!doctype html>", "a.JSON": "{", "a.md": "#", "a.txt": "j-", "a": "j-"}
    for name, begin in begins.items():
        show(0, "report", "j", "--file", str(tmp_path / name))
        assert (tmp_path / name).read_text().startswith(begin), name
    show(0, "report", "j", "--file", str(tmp_path / "b.html"), "--output", "json")
    assert (tmp_path / "b.html").read_text().startswith("{")
    for command in ("report", "compare"):
        for name in ("", ".", "/"):
            refused = cli(command, "j", "--file", name)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert f"{name!r} is no name of a file\nhint: " in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--region", "mars-1"], "no price in 'mars-1' is known; known: ap-northeast-1"),
        (["--types", ""], "'' names no instance type"),
        (["--types", ","], "',' names no instance type"),
    ],
)
def test_advise_refuses_what_names_nothing(cli: Cli, arguments: list[str], error: str) -> None:
    refused = cli("advise", "j", *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert error in refused.stderr
    assert "hint: " in refused.stderr


def test_a_report_says_what_the_search_for_metrics_left_out(cli: Cli, show: Show) -> None:
    paths = make(cli, "j")
    left_out = MetricsLeftOut(
        t=1.0, group="dnn", host="algo-1", what=LeftOut.DEFINITION, definition="loss", count=3, example="(x)"
    )
    with EventWriter(paths.events("algo-1")) as events:
        events.write(left_out)
    told = event_text.left_out(left_out)
    assert f"{told}\n" in show(0, "report", "j")
    assert any(note.endswith(told) for note in json.loads(show(0, "report", "j", "--output", "json"))["notes"])


def test_the_help_of_run_names_every_exit_code(cli: Cli) -> None:
    told = " ".join(cli("run", "--help").stdout.split())
    assert (
        "2 the job cannot start (nothing was started), 4 stopped because its budget was used up, 130 stopped." in told
    )

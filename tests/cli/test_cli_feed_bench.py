"""`headrace feed bench`: real processes, figures that follow from the windows, and nothing left behind."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import time

import psutil
import pytest
from command_line import Cli
from effort import SOAK

from headrace.cli.main import invoke

QUICK = ("--rounds", "2", "--seconds", "0.05", "--shape", "150 KB")


@pytest.mark.torch
def test_the_bench_measures_every_contender_and_keeps_the_windows(cli: Cli) -> None:
    from headrace.measuring.windows import CONTENDERS, SHAPES, Window, summarise

    result = cli("feed", "bench", *QUICK, "--output", "json", timeout=110)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    windows = [Window(**window) for window in told["windows"]]
    assert [(window.round, window.contender) for window in windows] == [
        (number, contender) for number in (1, 2) for contender in CONTENDERS
    ]
    [size] = [shape.bytes for shape in SHAPES if shape.name == "150 KB"]
    for window in windows:
        assert window.bytes == window.batches * size > 0
        assert window.seconds >= 0.05
        assert window.cpu >= 0
    assert [(each["shape"], each["contender"]) for each in told["summary"]] == [("150 KB", each) for each in CONTENDERS]
    assert [each["batches_per_second"] for each in told["summary"]] == pytest.approx(
        [each.batches_per_second for each in summarise(windows)]
    )
    assert told["machine"]["torch"]


@pytest.mark.torch
def test_the_bench_as_csv_has_one_line_a_window_and_as_text_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.measuring import windows

    measured = [windows.Window("150 KB", each, 1, 10, 1_505_280, 0.05, 0.1) for each in windows.CONTENDERS]
    monkeypatch.setattr(windows, "measure", lambda *_: measured)
    assert invoke(["feed", "bench", *QUICK, "--output", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["contender"] for line in lines] == list(windows.CONTENDERS)
    assert [line["bytes"] for line in lines] == ["1505280"] * 5
    assert invoke(["feed", "bench", *QUICK]) == 0
    text = capsys.readouterr().out
    assert "limit: memcpy, one thread" in text
    assert "CPU s/GB counts all processes" in text


def arguments(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


if SOAK:  # its processes are those of a bench that ends, and of `feed serve`, which tests interrupt

    @pytest.mark.torch
    def test_a_bench_that_is_interrupted_leaves_nothing_behind(cli: Cli) -> None:
        child = cli.start("feed", "bench", "--seconds", "60", "--shape", "150 KB", err=subprocess.PIPE)
        bench = psutil.Process(child.pid)
        family: list[psutil.Process] = []
        while not any("--send" in arguments(process) for process in family):  # the last that it starts
            time.sleep(0.05)
            family = bench.children(recursive=True)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
        assert child.returncode == 130
        assert not psutil.wait_procs(family, timeout=10)[1]


@pytest.mark.torch
def test_a_shape_that_is_not_known_is_an_error_that_names_those_that_are(cli: Cli) -> None:
    result = cli("feed", "bench", "--shape", "huge")
    assert result.returncode == 2
    assert result.stderr == "error: no shape 'huge'\nhint: one of '19 MB', '150 KB', '64 x 3 KB'\n"


@pytest.mark.torch
def test_a_summary_is_medians_over_rounds_and_ratios_within_a_round() -> None:
    from headrace.measuring.windows import TORCH, Window, summarise

    ours = [Window("s", "ours", number, batches, batches * 10**9, 1.0, 2.0) for number, batches in enumerate((4, 9, 6))]
    torch = [Window("s", TORCH, number, batches, batches * 10**9, 1.0, 2.0) for number, batches in enumerate((2, 3, 6))]
    mine, its = summarise(ours + torch)
    assert (mine.batches_per_second, mine.low, mine.high, mine.gigabytes_per_second) == (6, 4, 9, 6)
    assert mine.cpu_seconds_per_gb == pytest.approx(1 / 3)
    assert mine.against_torch == 2, "of 2, 3 and 1"
    assert its.against_torch is None
    assert summarise(ours)[0].against_torch is None

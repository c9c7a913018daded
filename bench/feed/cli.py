"""The command line: which rows, how long, and where the results go."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.feed import records
from bench.feed.figures import Figure, Records, markdown
from bench.feed.measure import QUICK, Bench, Effort
from bench.feed.rows import ROWS, module
from bench.feed.settings import RESULTS, Settings
from bench.feed.surroundings import describe, write_sidecar

COMMANDS = ("run", "sweep", "table", "plot", "publish", "row")
ROW_SECONDS = 600


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 1 when a row could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.feed", description="Measures headrace's feed against its peers on the same work."
    )
    parser.add_argument(
        "command", nargs="?", default="run", choices=["run", "sweep", "table", "plot", "publish", "row"]
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        help="table, publish: raw data (publish: a row is from the last that has it); plot: raw data and the picture",
    )
    parser.add_argument("--rows", default=",".join(ROWS), help="rows, by commas: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of every row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.8, help="length of a window (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that it works, says nothing about speed"
    )
    parser.add_argument(
        "--into", type=Path, help="CSV to write or, when it is there, to go on with (rows in it are kept)"
    )
    options = parser.parse_args(arguments)
    rows = [row.strip() for row in options.rows.split(",") if row.strip()]
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"unknown row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    effort = QUICK if options.quick else Effort(options.repeats, options.seconds)
    if options.command == "table":
        for file in options.files:
            print(markdown(figures(file)))
        return 0
    if options.command == "plot":
        from bench.feed.plot import plot

        source, picture = options.files
        plot(figures(source), picture)
        return 0
    if options.command == "publish":
        from bench.feed.publish import publish

        publish(*merged({file: figures(file) for file in options.files}))
        return 0
    if options.command == "row":
        return measure_row(rows[0], effort, options.into)
    if options.command == "sweep":
        from bench.feed.sweep import sweep

        return sweep(rows, effort, options.into)
    return measure_all(rows, effort, options.into, list(sys.argv[1:] if arguments is None else arguments))


def measure_row(row: str, effort: Effort, into: Path) -> int:
    """Measures one row in this process; its records are written when it is complete."""
    bench = Bench(row, effort)
    module(row).run(bench, Settings.latest())
    records.write(into, bench.records)
    return 0


def measure_all(rows: Sequence[str], effort: Effort, into: Path | None, arguments: list[str]) -> int:
    """Measures rows, each in a fresh process, and prints the table. Rows that `into` holds already are kept."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    RESULTS.mkdir(exist_ok=True)
    into = (into or RESULTS / f"feed-{stamp}.csv").resolve()
    done = {record.row for record in records.read(into)} if into.exists() else set()
    write_sidecar(into, arguments, describe())
    failed = []
    for row in rows:
        if row in done:
            continue
        command = [sys.executable, "-m", "bench.feed", "row", "--rows", row, "--into", str(into)]
        command += (
            ["--quick"] if effort is QUICK else ["--repeats", str(effort.repeats), "--seconds", str(effort.seconds)]
        )
        begun = time.monotonic()
        code = run_alone(command)
        print(f"{row}: {time.monotonic() - begun:.0f} s{'' if code == 0 else ', failed'}", file=sys.stderr, flush=True)
        if code:
            failed.append(row)
    if into.exists():
        table = markdown(figures(into))
        into.with_suffix(".md").write_text(table + "\n")
        print(table)
    print(f"\nraw data: {into}", file=sys.stderr)
    if failed:
        print(f"not measured: {', '.join(failed)}; see the messages above", file=sys.stderr)
    return 1 if failed else 0


def run_alone(command: list[str]) -> int:
    """Runs a row, and leaves nothing of it, however it ends. Returns its exit code."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(ROW_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"not done within {ROW_SECONDS} s", file=sys.stderr)
        return 1
    finally:
        with contextlib.suppress(ProcessLookupError):  # its whole group, servers included; usually it is empty
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def merged(files: dict[Path, list[Figure]]) -> tuple[dict[Path, list[str]], list[Figure]]:
    """Takes each row from the last file that has it. Returns the rows of every file, and all figures in their order."""
    latest = {figure.row: file for file, found in files.items() for figure in found}
    rows = {file: [row for row in ROWS if latest.get(row) == file] for file in files}
    return rows, [figure for row in ROWS if row in latest for figure in files[latest[row]] if figure.row == row]


def figures(file: Path) -> list[Figure]:
    """Returns all figures of a file of raw data, in the order of the rows."""
    found = records.read(file)
    there = {record.row for record in found}
    return [figure for row in ROWS if row in there for figure in module(row).figures(Records(row, found))]

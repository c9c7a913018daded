"""How fast the page of `headrace ui` is with 100 runs, and with one of a million steps, and what it costs while idle.

    python bench/ui.py [--runs 100] [--hours 8.7] [--repeats 5] [--output FILE]
    python bench/ui.py --idle 60 [--runs 1000] [--lines 10000] [--repeats 3] [--output FILE]

Makes the runs (no job runs), starts `headrace ui` and asks it: each address once cold and then warm, and opens the
two pages in a headless Chromium, until their content is there. Prints a table of milliseconds: cold, median of the warm
ones, and bytes of the answer.

With `--idle` a page stays open for so many seconds in which nothing changes: the list of runs, and a grid that goes on
(ten lines run, half have ended). Printed are the CPU seconds of the server, and of Chromium, as a share of a core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "console"), str(HERE.parent / "tests")]
sys.path.insert(0, str(HERE.parent / "src"))

import httpx  # noqa: E402
import psutil  # noqa: E402
from made_runs import START, make_run  # noqa: E402
from msgspec.structs import replace  # noqa: E402
from page_server import CHROMIUM, Ui, start_ui  # noqa: E402

from headrace.grid.grid_record import AttemptRecord, AttemptState, GridRecord, LineRecord, LineState  # noqa: E402
from headrace.grid.journal import Journal  # noqa: E402
from headrace.grid.read_grid import FILE  # noqa: E402
from headrace.runs import Status  # noqa: E402

RANKS = 4  # of a made-up run
FLAGS = ["--no-sandbox", "--disable-gpu"]  # of Chromium
SETTLED = 20.0  # seconds after which a page that was opened is idle


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--runs", type=int, default=100)
    asked.add_argument("--hours", type=float, default=8.7, help="of the long run; 8 steps a second of each of 4 ranks")
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--output", type=Path)
    asked.add_argument("--idle", type=float, default=0.0, help="seconds that a page stays open; 0: measure the speed")
    asked.add_argument("--lines", type=int, default=10_000, help="of the grid")
    options = asked.parse_args()
    if options.idle:
        return write(idle(options.runs, options.lines, options.idle, options.repeats), options.output)
    with tempfile.TemporaryDirectory() as home:
        long = make(Path(home) / "runs", options.runs, int(options.hours * 3600))
        ui = start_ui(Path(home))
        try:
            rows = [*api(ui, long, options.repeats), *pages(ui, long, options.repeats)]
        finally:
            ui.stop()
    for row in rows:
        print(f"{row['what']:44} cold {row['cold']:8.0f} ms   warm {row['warm']:7.0f} ms   {row['bytes']:>9,} bytes")
    return write({"runs": options.runs + 1, "rows": rows}, options.output)


def write(measured: dict[str, object], output: Path | None) -> None:
    if output:
        measured |= {"load_after": os.getloadavg(), "cores": os.cpu_count()}
        output.write_text(json.dumps(measured, indent=1) + "\n")


def idle(runs: int, lines: int, seconds: float, repeats: int) -> dict[str, object]:
    """Returns the CPU, in percent of a core, of a page that is open and idle; the two pages in turn."""
    from playwright.sync_api import sync_playwright

    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        ids = make_runs(Path(home) / "runs", runs, most=30)
        make_grid(Path(home) / "grids" / "campaigns" / FILE, lines, ids)
        ui = start_ui(Path(home))
        try:
            for name, path in (("list of runs", "/"), ("grid", "/grids/campaigns")) * repeats:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                page = browser.new_page(viewport={"width": 1600, "height": 900})
                page.goto(ui.url(path))
                page.locator("tbody tr").first.wait_for(timeout=120_000)
                page.wait_for_timeout(1000 * SETTLED)
                server, clients = [psutil.Process(ui.process.pid)], chromium_processes()
                before, began = (cpu(server), cpu(clients)), time.monotonic()
                page.wait_for_timeout(1000 * seconds)
                took = time.monotonic() - began
                shares = [100 * (cpu(of) - first) / took for of, first in zip((server, clients), before, strict=True)]
                row = {
                    "page": name,
                    "seconds": round(took),
                    "server": round(shares[0], 2),
                    "browser": round(shares[1], 2),
                }
                rows.append(row)
                print(row, flush=True)
                browser.close()
        finally:
            ui.stop()
    return {"runs": runs, "lines": lines, "rows": rows}


def chromium_processes() -> list[psutil.Process]:
    """Returns the processes of the browser that this one has started."""
    return [child for child in psutil.Process().children(recursive=True) if "chrom" in child.name()]


def cpu(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def make_grid(path: Path, count: int, runs: Sequence[str]) -> None:
    """Makes the journal of a grid that goes on: half of its lines have ended, ten run; the runs of most are removed."""
    path.parent.mkdir(parents=True)
    began = time.time() - 3600
    lines = tuple(
        LineRecord(
            index, f"k{index}", f"array.txt:{index + 1}", {"hyperparameters.lr": index / 10}, f"campaigns-k{index}",
            "local", f"region-{index % 4}", 2.0, 600.0, LineState.WAITING,
        )
        for index in range(count)
    )  # fmt: skip
    with closing(Journal(path, create=True)) as journal:
        journal.begin(GridRecord("campaigns", "/nowhere/array.yaml", "d", began, lines, budget=50_000.0))
        for index in range(count // 2 + 10):
            started = began + 0.3 * index
            run = runs[index] if index < len(runs) else f"campaigns-k{index}-20261129-010203-{index:04x}"
            attempt = AttemptRecord(
                1, f"campaigns-k{index}", "local", f"region-{index % 4}", "d", AttemptState.INTENDED, started,
                run, started,
            )  # fmt: skip
            journal.intend(f"k{index}", attempt)
            journal.started(f"k{index}", 1, run, started)
            if index < count // 2:
                ended = replace(
                    attempt, state=AttemptState.ENDED, ended=started + 600, cost=1.25, status=Status.COMPLETED
                )
                journal.ended(f"k{index}", ended, LineState.COMPLETED)


def make_runs(runs: Path, count: int, most: int) -> list[str]:
    """Makes short runs, of at most so many seconds; returns their ids."""
    chance = random.Random(1)
    return [
        make_run(
            runs, f"job-{index % 12}", created=START - 600 * index, seconds=chance.randint(most // 10, most),
            data_hosts=index % 4, starved=index % 3 == 0, faults=False, seed=index,
        ).id
        for index in range(count)
    ]  # fmt: skip


def make(runs: Path, count: int, seconds: int) -> str:
    """Makes the runs; returns the id of the long one."""
    make_runs(runs, count, most=300)
    begun = time.monotonic()
    long = make_run(runs, "million", created=START + 1, seconds=seconds, log_every=1.0)
    size = sum(path.stat().st_size for path in long.root.rglob("*") if path.is_file())
    print(
        f"{count} runs; {seconds * 8 * RANKS:,} steps in {size / 1e6:.0f} MB, made in {time.monotonic() - begun:.0f} s"
    )
    return long.id


def timed(what: str, ask: Callable[[], int], repeats: int) -> dict[str, object]:
    """Measures one question: the first time, and the median of the others, in ms."""
    times = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        size = ask()
        times.append(1000 * (time.perf_counter() - begun))
    return {"what": what, "cold": times[0], "warm": statistics.median(times[1:]), "bytes": size, "times": times}


def api(ui: Ui, long: str, repeats: int) -> Iterator[dict[str, object]]:
    """Yields the times of the JSON documents."""
    middle = START + 5000
    with httpx.Client(timeout=120) as client:
        for what, path in (
            ("list of runs", "/api/runs"),
            ("million steps: timeline", f"/api/runs/{long}/timeline"),
            ("million steps: metrics, whole", f"/api/runs/{long}/metrics"),
            ("million steps: metrics, 10 minutes", f"/api/runs/{long}/metrics?start={middle}&end={middle + 600}"),
            ("million steps: last lines of the log", f"/api/runs/{long}/logs"),
            ("million steps: log lines of one moment", f"/api/runs/{long}/logs?t={middle}&back=40"),
            ("million steps: search without a hit, a page", f"/api/runs/{long}/logs?text=nowhere"),
            ("million steps: report", f"/api/runs/{long}/report"),
        ):
            yield timed(what, lambda path=path: len(client.get(ui.url(path)).content), repeats)  # type: ignore[misc]


def pages(ui: Ui, long: str, repeats: int) -> Iterator[dict[str, object]]:
    """Yields the times of the pages, from the address to their content."""
    from playwright.sync_api import Page, sync_playwright

    def list_page(page: Page) -> int:
        page.goto(ui.url("/"))
        page.locator("#runs tbody tr").nth(99).wait_for(state="attached")
        return 0

    def job_page(page: Page) -> int:
        page.goto(ui.url(f"/runs/{long}"))
        page.locator(".chart .plot").nth(5).wait_for()
        page.locator(".log-line").first.wait_for()
        return 0

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        page.set_default_timeout(120_000)
        yield timed("page: list of runs, all rows", lambda: list_page(page), repeats)
        yield timed("page: million steps, charts and log", lambda: job_page(page), repeats)
        browser.close()


if __name__ == "__main__":
    main()

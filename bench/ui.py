"""How fast the page of `headrace ui` is with 100 runs, and with one of a million steps.

    python bench/ui.py [--runs 100] [--hours 8.7] [--repeats 5] [--output FILE]

Makes the runs (no job runs), starts `headrace ui` and asks it: each address once cold and then warm, and opens the
two pages in a headless Chromium, until their content is there. Prints a table of milliseconds: cold, median of the warm
ones, and bytes of the answer.
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
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "console"))
sys.path.insert(0, str(HERE.parent / "src"))

import httpx  # noqa: E402
from made_runs import START, make_run  # noqa: E402
from page_server import CHROMIUM, Ui, start_ui  # noqa: E402

RANKS = 4  # of a made-up run


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--runs", type=int, default=100)
    asked.add_argument("--hours", type=float, default=8.7, help="of the long run; 8 steps a second of each of 4 ranks")
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--output", type=Path)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as home:
        long = make(Path(home) / "runs", options.runs, int(options.hours * 3600))
        ui = start_ui(Path(home))
        try:
            rows = [*api(ui, long, options.repeats), *pages(ui, long, options.repeats)]
        finally:
            ui.stop()
    found = {"runs": options.runs + 1, "load": os.getloadavg()[0], "cores": os.cpu_count(), "rows": rows}
    for row in rows:
        print(f"{row['what']:44} cold {row['cold']:8.0f} ms   warm {row['warm']:7.0f} ms   {row['bytes']:>9,} bytes")
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


def make(runs: Path, count: int, seconds: int) -> str:
    """Makes the runs; returns the id of the long one."""
    chance = random.Random(1)
    for index in range(count):
        make_run(
            runs, f"job-{index % 12}", created=START - 600 * index, seconds=chance.randint(30, 300),
            data_hosts=index % 4, starved=index % 3 == 0, faults=False, seed=index,
        )  # fmt: skip
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

    drawn = "() => document.querySelectorAll('.chart canvas').length > 5"

    def list_page(page: Page) -> int:
        page.goto(ui.url("/"))
        page.locator("#runs tbody tr").nth(99).wait_for(state="attached")
        return 0

    def job_page(page: Page) -> int:
        page.goto(ui.url(f"/runs/{long}"))
        page.wait_for_function(drawn)
        page.locator(".log-line").first.wait_for()
        return 0

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        page.set_default_timeout(120_000)
        yield timed("page: list of runs, all rows", lambda: list_page(page), repeats)
        yield timed("page: million steps, charts and log", lambda: job_page(page), repeats)
        browser.close()


if __name__ == "__main__":
    main()

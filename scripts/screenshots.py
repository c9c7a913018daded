"""Takes the pictures of docs/images anew: `headrace ui` and a grid's report, over made-up runs, in a headless Chromium.

    python scripts/screenshots.py [NAME ...]        # make screenshots

Times, identifiers and noise are fixed, so a picture changes only when the page does (or the fonts of the machine).
"""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "console"), str(ROOT / "src")]

from made_runs import DNN, START, make_run, write_lines  # noqa: E402
from page_server import CHROMIUM, COMMAND, start_ui  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402

from headrace.grid.grid_record import AttemptRecord, AttemptState, GridRecord, LineRecord, LineState  # noqa: E402
from headrace.grid.journal import Journal  # noqa: E402
from headrace.grid.read_grid import FILE  # noqa: E402
from headrace.own_runs import enter_run  # noqa: E402
from headrace.runs import RunPaths, Status, Stream, ValueSecond, store  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 200_000
NOW = START + 3600.0
LINES = [(region, data, rate) for region, data in (
    ("us-west-2", "sf-autumn"), ("us-east-1", "detroit-autumn"), ("us-east-1", "detroit-night"),
) for rate in (0.001, 0.004)]  # fmt: skip
ACCURACY = (0.9164, 0.9331, 0.8942, 0.9053, 0.7827, 0.8329)


def make_runs(runs: Path) -> dict[str, RunPaths]:
    """Makes the runs of the list; two of them are shown and compared."""
    noise = random.Random(7)
    store.secrets.token_hex = lambda size: f"{noise.getrandbits(8 * size):0{2 * size}x}"  # of the runs' identifiers
    for index, (name, hosts, starved) in enumerate(
        [("unet-3d", 1, False), ("dlrm", 0, True), ("vit-base", 3, False), ("dlrm", 0, True), ("vit-base", 2, False)]
    ):
        status = Status.STOPPED if name == "vit-base" else Status.COMPLETED
        make_run(
            runs, name, created=START - 86_400 + 3600 * index, seconds=noise.randint(60, 250), data_hosts=hosts,
            starved=starved, status=status, faults=False, seed=index,
        )  # fmt: skip
    make_run(runs, "bert-finetune", created=START - 7200, seconds=60, status=Status.FAILED, faults=False)
    return {
        "homogeneous": make_run(
            runs, "resnet-homogeneous", created=START - 1200, seconds=790, data_hosts=0, starved=True
        ),
        "heterogeneous": make_run(runs, "resnet-heterogeneous", created=START),
    }


def make_grid(home: Path) -> None:
    """Makes the grid of examples/campaigns: six lines in two regions, two at a time."""
    folder = home / "grids" / "campaigns"
    folder.mkdir(parents=True)
    enter_run(folder)
    journal = Journal(folder / FILE, create=True)
    began = START - 10 * 86_400
    names = [f"campaigns-{random.Random(index).getrandbits(48):012x}" for index in range(len(LINES))]
    records = [
        LineRecord(
            index, f"k{index}", f"row {index // 2 + 1} of the query with combination {index % 2 + 1}",
            {"path": f"data/{data}", "hyperparameters.learning_rate": rate}, names[index], "local", region, 0.0269,
            60.0, LineState.WAITING,
        )
        for index, (region, data, rate) in enumerate(LINES)
    ]  # fmt: skip
    journal.begin(
        GridRecord("campaigns", str(ROOT / "examples/campaigns/array.yaml"), "d", began, tuple(records), budget=1.0)
    )
    for index, (region, _, _) in enumerate(LINES):
        begins, seconds = began + 5 + 42 * index, (39, 30, 33, 36, 28, 32)[index]
        run = make_run(home / "runs", names[index], created=begins, seconds=seconds - 12, faults=False, seed=index)
        accuracy = dict.fromkeys(("last", "low", "high", "total"), ACCURACY[index])
        value = ValueSecond(t=begins + 15, name="accuracy", stream="0", count=1, **accuracy)
        write_lines(run.metrics(Stream(DNN, "algo-3", "more")), [value])
        attempt = AttemptRecord(1, names[index], "local", region, "d", AttemptState.INTENDED, begins)
        journal.intend(f"k{index}", attempt)
        journal.started(f"k{index}", 1, run.id, begins)
        ended = AttemptRecord(
            1, names[index], "local", region, "d", AttemptState.ENDED, begins, run.id, begins, begins + seconds,
            Status.COMPLETED, cost=round(0.0005 * seconds, 4),
        )  # fmt: skip
        journal.ended(f"k{index}", ended, LineState.COMPLETED)
    journal.finish(began + 5 + 42 * len(LINES))
    journal.close()


def main() -> None:
    """Takes all pictures, or those that are named."""
    assert CHROMIUM, "no Chromium: apt-get install chromium"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        home = Path(folder)
        os.environ["HEADRACE_HOME"] = str(home)
        shown = make_runs(home / "runs")
        make_grid(home)
        report = home / "campaigns.html"
        subprocess.run(
            [*COMMAND, "grid", "report", "campaigns", "--file", str(report)], check=True, stdout=subprocess.DEVNULL
        )
        one, other = shown["homogeneous"].id, shown["heterogeneous"].id
        ui = start_ui(home)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            pictures = {
                "ui-runs": (ui.url("/"), 780, "light", "[data-field]"),
                "ui-run": (ui.url(f"/runs/{other}"), 1240, "light", ".fault"),
                "ui-compare": (ui.url(f"/compare?run={one}&run={other}"), 780, "dark", "canvas"),
                "ui-grid": (ui.url("/grids/campaigns"), 940, "light", ".region >> nth=1"),
                "grid-report": (report.as_uri(), 1240, "light", "svg"),
            }
            for name in sys.argv[1:] or pictures:
                take(browser, name, *pictures[name])
        finally:
            browser.close()
            ui.stop()


def take(browser: Browser, name: str, address: str, height: int, scheme: str, drawn: str) -> None:
    """Takes one picture, at a fixed time of the day, when what is drawn last is there."""
    page = browser.new_page(viewport={"width": 1500, "height": height}, color_scheme=scheme, timezone_id="UTC")
    page.clock.set_fixed_time(NOW)
    page.goto(address)
    page.locator(drawn).first.wait_for()
    if name == "ui-run":
        page.wait_for_function("() => document.querySelectorAll('.chart canvas').length > 5")
        page.locator(drawn).first.click()  # the log of that moment
        page.locator(".log-line").first.wait_for()
    page.wait_for_load_state("networkidle")
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    path = IMAGES / f"{name}.png"
    picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{name}: {path.stat().st_size:,} bytes")
    assert path.stat().st_size < MOST_BYTES
    page.close()


if __name__ == "__main__":
    main()

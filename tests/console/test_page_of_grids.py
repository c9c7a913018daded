"""The pages of grids in a real headless Chromium: the list, one grid with lanes, best lines and rows, followed live."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from made_runs import make_run
from page_server import Ui
from playwright.sync_api import Browser, Page, expect

from headrace.grid.grid_record import AttemptRecord, AttemptState, GridRecord, LineRecord, LineState
from headrace.grid.journal import Journal
from headrace.grid.read_grid import FILE
from headrace.runs import Cause, CauseKind, Status

pytestmark = pytest.mark.needs("chromium")

EVIL = "<img src=x onerror=stop()>"
BEGAN = 1_780_000_000.0
expect.set_options(timeout=60_000)


def _attempt(index: int, run: str) -> AttemptRecord:
    began = BEGAN + 5 + 20 * (index % 3)
    return AttemptRecord(
        1, f"campaigns-k{index}", "local", REGIONS[index % 2], "d", AttemptState.INTENDED, began, run, began
    )


REGIONS = ("us-west-2", "eu-central-1")
LINES = tuple(
    LineRecord(
        index, f"k{index}", f"array.txt:{index + 1}", {"hyperparameters.lr": EVIL if index == 4 else index / 10},
        f"campaigns-k{index}", "local", REGIONS[index % 2], 2.0, 600.0, LineState.WAITING,
    )
    for index in range(6)
)  # fmt: skip
CAUSE = Cause(CauseKind.PROGRAM_EXITED, group="dnn_group", host="algo-1", stream="0", exit_code=3)


@pytest.fixture(scope="module")
def journal(home: Path) -> Iterator[Journal]:
    """A grid of six lines: one completed, one failed, one running, three waiting."""
    make_run(home / "runs", "campaigns-k0", seconds=20)
    path = home / "grids" / "campaigns" / FILE
    path.parent.mkdir(parents=True)
    made = Journal(path, create=True)
    made.begin(GridRecord("campaigns", "/nowhere/array.yaml", "d", BEGAN, LINES, budget=50.0))
    for index in range(3):
        made.intend(f"k{index}", _attempt(index, ""))
        made.started(f"k{index}", 1, f"campaigns-k{index}", BEGAN + 5 + 20 * index)
    _end(made, 0, LineState.COMPLETED, Status.COMPLETED)
    _end(made, 1, LineState.FAILED, Status.FAILED, CAUSE)
    yield made
    made.close()


def _end(journal: Journal, index: int, state: LineState, status: Status, cause: Cause | None = None) -> None:
    ended = msgspec.structs.replace(
        _attempt(index, f"campaigns-k{index}"), state=AttemptState.ENDED, ended=BEGAN + 45 + 20 * index, cost=1.25,
        status=status, cause=cause,
    )  # fmt: skip
    journal.ended(f"k{index}", ended, state)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails its test when it says anything on the console."""
    made = browser.new_page(viewport={"width": 1500, "height": 900})
    said: list[str] = []
    made.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: said.append(str(error)))
    yield made
    made.close()
    assert said == []


@pytest.mark.promise("ui", "the page shows a grid live, every line with a way to its run")
def test_the_list_leads_to_a_grid_and_its_lines_to_their_runs(page: Page, ui: Ui, journal: Journal) -> None:
    page.goto(ui.url("/grids"))
    expect(page.locator("#grids tbody tr")).to_have_count(1)
    expect(page.locator("#grids tbody")).to_contain_text("6: 1 completed, 1 running, 3 waiting, 1 failed")
    page.get_by_role("link", name="campaigns", exact=True).click()
    expect(page.locator("#lines tbody tr")).to_have_count(6)
    expect(page.locator(".region")).to_have_count(2)
    expect(page.locator(".track a")).to_have_count(3)
    expect(page.locator("#summary")).to_contain_text("Budget 50.00 USD")
    failed = page.locator("#lines tbody tr", has_text="campaigns-k1")
    expect(failed).to_contain_text("exited with code 3")
    page.get_by_label("Line, job, region").fill("eu-central")
    expect(page.locator("#lines tbody tr")).to_have_count(3)
    page.get_by_label("Line, job, region").fill("")
    page.locator("#states label", has_text="completed").click()
    expect(page.locator("#lines tbody tr")).to_have_count(1)
    completed = page.locator("#lines tbody tr", has_text="campaigns-k0")
    expect(completed.get_by_role("link")).to_contain_text("=")  # what the line sets, in place of a name with a digest
    completed.get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("campaigns-k0")


def test_what_lines_say_stays_text(page: Page, ui: Ui, journal: Journal) -> None:
    page.goto(ui.url("/grids/campaigns"))
    expect(page.locator("#lines tbody tr", has_text="campaigns-k4")).to_contain_text("<img src=x")
    assert "campaigns" in page.title()


@pytest.mark.promise("ui", "the page shows a grid live, every line with a way to its run")
def test_a_grid_that_goes_on_is_followed_to_its_end(page: Page, ui: Ui, journal: Journal) -> None:
    page.goto(ui.url("/grids/campaigns"))
    expect(page.locator("#lines tbody tr", has_text="campaigns-k2")).to_contain_text("running")
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate("for (const id of ['lines', 'notes']) document.getElementById(id).seen = true")
    page.get_by_label("Line, job, region").fill("campaigns-k2")
    expect(page.locator("#lines tbody tr")).to_have_count(1)
    expect(page.locator("#lines")).not_to_have_js_property("seen", True)
    expect(page.locator("#notes")).to_have_js_property("seen", True)  # a part that has not changed stays
    _end(journal, 2, LineState.COMPLETED, Status.COMPLETED)
    expect(page.locator("#lines tbody tr", has_text="campaigns-k2")).to_contain_text("completed")
    journal.close_lines({f"k{index}": (LineState.STOPPED, "the budget is spent") for index in range(3, 6)})
    journal.finish(BEGAN + 200)
    expect(page.locator("#live")).to_have_text("ended")
    expect(page.locator("#summary")).to_contain_text("Took 3:20")


def test_the_answers_are_the_documents_of_the_commands(ui: Ui, journal: Journal, home: Path) -> None:
    with httpx.Client(base_url=ui.base, cookies={f"headrace-ui-{ui.base.rpartition(':')[2]}": ui.token}) as client:
        report = client.get("/api/grids/campaigns").json()
        assert [line["index"] for line in report["lines"]] == list(range(6))
        (listed,) = client.get("/api/grids").json()["grids"]
        assert (listed["name"], listed["lines"], listed["budget"]) == ("campaigns", 6, 50.0)
        unknown = client.get("/api/grids/other")
        assert (unknown.status_code, "there is no grid 'other'" in json.dumps(unknown.json())) == (422, True)
        assert client.get("/api/grids/other/live").status_code == 404

"""The pages in a real browser: drawn, quiet, self-contained, light and dark, readable when narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright
from recorded_runs import FEED, feed, host, loader, rank, read_charts, record

from headrace.insight import compare, report
from headrace.insight.render.html import page
from headrace.insight.render.run_documents import compared_table, comparison_document, report_document
from headrace.insight.render.svg import compared_charts, run_charts
from headrace.runs import Stream
from needs import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.needs("chromium")

LINES = """() => [...document.querySelectorAll('svg.chart path.line')].map(path => {
  const style = getComputedStyle(path), box = path.getBBox();
  return {length: path.getTotalLength(), stroke: style.stroke, width: box.width, points: path.getAttribute('d')};
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages") / "a_name_in_which_no_browser_breaks_a_line_by_itself"
    folder.mkdir()  # the notes of a page name it
    hosts = {Stream("dnn_group", "algo-2", "host"): host(0.9), Stream("data_group", "algo-1", "host"): host(0.4)}
    runs = [
        record(folder, "homogeneous", {rank(0): loader(0.5, step=0.2), **hosts}),
        record(folder, "heterogeneous", {rank(0): loader(0.01), FEED: feed(0.5, 0.2), **hosts}),
    ]
    slow, fast = map(report, runs)
    slow_charts, fast_charts = map(read_charts, runs, (slow, fast))
    found = {"comparison": folder / "comparison.html", "report": folder / "report.html"}
    compared = compare([slow, fast, fast])
    charts = compared_charts(compared, [slow_charts, fast_charts, fast_charts])
    document = comparison_document(compared, [compared_table(compared)], charts)
    found["comparison"].write_text(page("compared", document), encoding="utf-8")
    document = report_document(slow, run_charts(slow, slow_charts))
    found["report"].write_text(page("slow", document), encoding="utf-8")
    return found


class Opened:
    """One page, with what it complained about and what it asked for."""

    def __init__(self, browser: Browser, path: Path, scheme: str, width: int) -> None:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())


@pytest.mark.parametrize("name", ["comparison", "report"])
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 360)])
def test_pages_are_drawn_without_complaint_and_alone(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    opened = Opened(browser, pages[name], scheme, width)
    page = opened.page
    assert opened.complaints == []
    assert opened.requests == [pages[name].as_uri()]
    lines = page.evaluate(LINES)
    assert len(lines) == (12 if name == "comparison" else 4)
    for line in lines:
        assert 50 < line["length"] < 5000
        assert line["width"] > 50
        assert line["stroke"] not in ("none", "rgb(0, 0, 0)")
        assert "NaN" not in line["points"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".badge").first.is_visible()
    bright = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (bright > 200) == (scheme == "light")
    page.context.close()


def test_the_formulas_open_with_the_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["report"], "light", 1200)
    formula = opened.page.locator("dd").first
    assert not formula.is_visible()
    opened.page.locator("summary").focus()
    opened.page.keyboard.press("Enter")
    assert formula.is_visible()
    opened.page.context.close()


def test_lines_of_one_chart_look_different_and_a_run_looks_the_same_in_all(
    browser: Browser, pages: dict[str, Path]
) -> None:
    opened = Opened(browser, pages["comparison"], "light", 1200)
    strokes = [line["stroke"] for line in opened.page.evaluate(LINES)]
    charts = [strokes[index : index + 3] for index in range(0, 12, 3)]
    assert len(set(charts[0])) == 3
    assert all(chart == charts[0] for chart in charts)
    opened.page.context.close()

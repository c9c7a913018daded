"""The pages in a real headless Chromium: drawn, filtered, followed, by mouse and by keyboard, without any error."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from made_runs import DATA, DNN, START, make_run, plan
from page_server import COMMAND, Ui
from playwright.sync_api import (
    APIResponse,
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Route,
    expect,
)

from headrace.cli.main import invoke
from headrace.insight import Figure
from headrace.insight.render.plain_text import number
from headrace.runs import (
    EventWriter,
    LogWriter,
    MetricWriter,
    RunPaths,
    Status,
    Stream,
    adopt,
    create_run,
)
from headrace.runs.events import HostRegistered, HostStarted, JobStarted, ProgramExited, ProgramStarted, RunFinished
from loader_seconds import loader_second

pytestmark = pytest.mark.needs("chromium")

PATIENCE = 60_000  # ms in which something must be seen: how fast a page is, is not tested here
expect.set_options(timeout=PATIENCE)
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
HOSTILE = f"\x1b[31m{EVIL}\x1b[0m"


@pytest.fixture(scope="module")
def made(home: Path) -> RunPaths:
    runs = home / "runs"
    for index in range(3):
        make_run(runs, f"old-{index}", seconds=8, data_hosts=index % 2, status=Status.STOPPED, created=1.7e9 + index)
    make_run(runs, "failing", seconds=20, status=Status.FAILED, faults=False, created=START - 500)
    make_run(runs, "homogeneous", seconds=60, data_hosts=0, starved=True, created=START - 300)
    paths = make_run(runs, "heterogeneous", seconds=120)
    with LogWriter(paths.log(Stream(DNN, "algo-3", "0"))) as log:
        log.write_line("e", HOSTILE.encode(), START + 140)
        log.write_line("e", b"y" * 50_000, START + 140.5)
    return paths


class Tab:
    """A page that fails its test when it says anything on the console."""

    def __init__(self, page: Page, ui: Ui) -> None:
        self.page = page
        self.ui = ui
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: object) -> None:
        url = request.url  # type: ignore[attr-defined]
        if not url.startswith(self.ui.base):
            self.complaints.append(f"asked {url}")

    def open(self, path: str) -> Page:
        self.page.goto(self.ui.url(path))
        return self.page


@pytest.fixture(scope="module")
def shared(browser: Browser, ui: Ui, made: RunPaths) -> Iterator[Page]:
    """The job page, opened once for the tests that look at it."""
    context = browser.new_context(viewport={"width": 1600, "height": 900})
    tab = Tab(context.new_page(), ui)
    yield tab.open("/runs/heterogeneous")
    context.close()
    assert tab.complaints == []


@pytest.fixture
def page(shared: Page) -> Page:
    """The shared job page, as it is after it was opened."""
    drawn(shared, "cpu")
    if shared.locator(".zoomed button").count():
        shared.get_by_role("button", name="whole run").click()
    for name in ("All groups", "All hosts", "All programs"):
        shared.get_by_label(name).select_option("")
    shared.get_by_label("Search in the lines").fill("")
    shared.get_by_role("button", name="End", exact=True).click()
    expect(shared.locator(".log-line", has_text="rank 0: done")).to_be_visible()
    return shared


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A profile that the tests share, with what the browser has cached."""
    context = browser.new_context(viewport={"width": 1600, "height": 900})
    yield context
    context.close()


@pytest.fixture
def tab(context: BrowserContext, ui: Ui, made: RunPaths) -> Iterator[Tab]:
    tab = Tab(context.new_page(), ui)
    yield tab
    tab.page.close()
    assert tab.complaints == []


LENGTH = """(chart) => [...document.querySelectorAll(`[data-chart="${chart}"] .plot .line`)]
  .reduce((sum, path) => sum + path.getTotalLength(), 0)"""


def drawn(page: Page, *charts: str) -> None:
    for chart in charts:
        page.wait_for_function(f"(chart) => ({LENGTH})(chart) > 50", arg=chart)


def test_the_list_shows_all_runs_and_filters_them(tab: Tab) -> None:
    page = tab.open("/")
    rows = page.locator("#runs tbody tr:visible")
    expect(rows).to_have_count(6)
    assert "token" not in page.url
    expect(rows.first).to_contain_text("heterogeneous")
    expect(rows.first).to_contain_text("Completed")
    expect(rows.first.locator(".group")).to_have_count(2)
    for at in range(2):  # as on the page of the run, whatever other runs are listed
        expect(rows.first.locator(".group").nth(at)).to_have_class(f"group g{at}")
    expect(rows.first).to_contain_text("USD")
    expect(page.locator("tr", has_text="failing")).to_contain_text("CUDA out of memory")
    page.get_by_label("Stopped").check(force=True)
    expect(rows).to_have_count(3)
    page.get_by_role("searchbox").fill("data_group")
    expect(rows).to_have_count(1)
    expect(page.locator("#count")).to_have_text("1 of 6 runs")
    page.reload()  # the filter is in the address
    expect(rows).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.locator("#empty")).to_have_text("No run matches.")
    page.get_by_role("searchbox").fill("")
    page.get_by_role("radio", name="All").check(force=True)
    page.get_by_role("checkbox", name=re.compile("Choose heterogeneous")).check()
    page.get_by_role("checkbox", name=re.compile("Choose homogeneous")).check()
    page.get_by_role("link", name="Compare 2 runs").click()
    expect(page.locator("table.compared th[scope=col]")).to_have_count(2)


def value_at(document: object, field: str) -> object:
    for part in re.findall(r"[^.\[\]]+", field):
        document = document[int(part)] if isinstance(document, list) else document[part]  # type: ignore[index,call-overload]
    return document


TRACED = "nodes => nodes.map(node => [node.dataset.command, node.dataset.field, node.dataset.value, node.textContent])"


@pytest.mark.promise("ui", "the page shows the figures of the commands, serves who has its token, and changes nothing")
@pytest.mark.parametrize(
    "path", ["/", "/runs/heterogeneous", "/runs/failing", "/compare?run=homogeneous&run=heterogeneous"]
)
def test_every_figure_is_a_field_of_a_command(
    tab: Tab, path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tab.open(path)
    page.wait_for_load_state("networkidle" if path == "/" else "load")
    page.locator("[data-field]").first.wait_for()
    if "runs/" in path:
        expect(page.locator("#tables table").first).to_be_visible()
    found = page.locator("[data-field]").evaluate_all(TRACED)
    assert len(found) >= (6 if path == "/" else 10)
    monkeypatch.setenv("HEADRACE_HOME", tab.ui.env["HEADRACE_HOME"])
    documents = {}
    for command, field, value, text in found:
        if command not in documents:
            assert invoke(command.split()[1:]) == 0
            documents[command] = json.loads(capsys.readouterr().out)
        printed = value_at(documents[command], field)
        assert printed == (None if value == "null" else float(value)), (command, field)
        figure = value_at(documents[command], field.removesuffix(".value"))
        if isinstance(figure, dict) and figure["unit"].startswith("USD"):
            assert number(msgspec.convert(figure, Figure)) in text, (command, field)


def test_the_job_page_draws_lanes_charts_and_cost(page: Page) -> None:
    drawn(page, "cpu", "gpu", "step_shares", "step_time", "queue", "bytes_per_second")
    expect(page.locator("h1")).to_have_text("heterogeneous")
    expect(page.locator(".lane-group h3")).to_contain_text([DATA, DNN])
    expect(page.locator(".lane")).to_have_count(4)
    assert page.locator(".lane").first.locator(".segment").evaluate_all("s => s.map(e => e.dataset.state)") == [
        "starting", "ready", "running", "stopping",
    ]  # fmt: skip
    expect(page.locator("#cost")).to_contain_text("ml.g5.12xlarge")
    expect(page.locator("#cost")).to_contain_text("seconds / 3600")
    expect(page.locator("#figures .figure .name").last).to_have_text("Cost")  # not so far: it has ended
    expect(page.locator("#cost .figures")).to_contain_text("Cost of 1,000 samples")
    values = page.locator("#tables table", has_text="train:loss")
    expect(values.locator("thead")).to_have_text("MetricProgramsFoundLastLeastGreatestMean")
    expect(values.locator("tbody tr")).to_contain_text(f"{DNN}/algo-3[0]")
    expect(page.locator("#tables").get_by_role("columnheader", name="GPU", exact=True)).to_have_count(1)
    expect(page.locator("#verdict")).to_contain_text("Verdict")
    expect(page.locator("#events")).to_contain_text("data worker lost")
    page.get_by_role("button", name="How Step time is computed").click()
    dialog = page.get_by_role("dialog", name="How this chart is made")
    expect(dialog).to_contain_text("sum(step) / sum(steps)")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.locator(".figure", has_text="Data wait").click()
    expect(page.get_by_role("dialog", name="Data wait")).to_contain_text("training.data_wait.value")


def test_the_chart_shows_the_numbers_of_the_command(page: Page, ui: Ui, made: RunPaths) -> None:
    drawn(page, "step_time")
    found = ui.client.get(ui.url(f"/api/runs/{made.id}/metrics")).json()
    chart = next(each for each in found["charts"] if each["name"] == "queue")
    page.locator("[data-chart=queue] .plot").focus()
    page.keyboard.press("Home")
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    value = chart["lines"][0]["values"][40]
    expect(page.locator("[data-chart=queue] .legend b")).to_have_text(f"{value:.2f} batches")
    expect(page.locator("#spoken")).to_contain_text(f"{value:.2f} batches")
    page.get_by_role("button", name="train:loss by step").click()
    expect(page.locator("[data-chart='value:train:loss']")).to_have_attribute("data-axis", "step")
    page.locator("[data-chart='value:train:loss'] .plot").focus()
    page.keyboard.press("Home")
    expect(page.locator("#spoken")).to_have_text(re.compile("^16: "))
    page.get_by_role("button", name="train:loss by step").click()


def test_the_last_values_are_those_of_the_training_and_not_of_its_shutdown(page: Page, ui: Ui, made: RunPaths) -> None:
    drawn(page, "cpu")
    found = ui.client.get(ui.url(f"/api/runs/{made.id}/metrics")).json()
    assert found["start"] < found["until"] < found["end"]
    last = max(index for index, t in enumerate(found["t"]) if t + found["width"] <= found["until"])
    chart = next(each for each in found["charts"] if each["name"] == "cpu")
    page.locator("h1").hover()
    shown = page.locator("[data-chart=cpu] .legend b")
    expect(shown).to_have_text(
        [re.compile(f"^{line['values'][last]:.0f}|{line['values'][last]:.1f}") for line in chart["lines"]]
    )
    shares = next(each for each in found["charts"] if each["name"] == "step_shares")
    assert shares["stacked"]
    assert [line["name"] for line in shares["lines"]] == ["data wait", "host to device", "compute"]


def test_a_point_of_a_chart_leads_to_its_log_lines(page: Page) -> None:
    drawn(page, "step_time")
    expect(page.locator(".log-line").first).to_be_visible()
    over = page.locator("[data-chart=step_time] .over")
    box = over.bounding_box()
    assert box is not None
    over.click(position={"x": box["width"] / 2, "y": 40})
    hit = page.locator(".log-line.hit").first
    expect(hit).to_be_in_viewport()
    middle = page.evaluate("() => document.querySelector('.log-line.hit').record.t")
    begin, end = START, START + 9 + 120 + 4
    assert abs(middle - (begin + end) / 2) < 4
    expect(page.locator("#logs .source code")).to_contain_text("--since 2026-11-20T19:01:0")
    page.locator(".fault").first.click()  # the lane's fault leads there, too
    expect(page.locator(".log-line.hit", has_text="executor 7").first).to_be_in_viewport()


def test_charts_that_are_drawn_anew_keep_the_focus_that_came_while_the_server_worked(page: Page) -> None:
    drawn(page, "cpu")
    charts = re.compile(r"/charts\?")
    page.route(charts, lambda _: None)  # the server works
    with page.expect_request(charts):
        page.get_by_role("button", name="train:loss by step").click()
    page.locator("[data-chart=cpu] .plot").focus()
    page.unroute(charts)  # it answers
    expect(page.locator("[data-chart='value:train:loss']")).to_have_attribute("data-axis", "step")
    expect(page.locator("[data-chart=cpu] .plot")).to_be_focused()


def test_dragging_zooms_and_finer_values_are_asked_for(page: Page) -> None:
    drawn(page, "cpu")
    over = page.locator("[data-chart=cpu] .over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    with page.expect_response(re.compile(r"/charts\?.*start=")):
        page.mouse.move(box["x"] + 100, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
        page.mouse.up()
    expect(page.locator(".zoomed button")).to_be_visible()
    expect(page.locator("#charts .source code")).to_contain_text("--start 17952012")
    drawn(page, "cpu")
    page.get_by_role("button", name="whole run").click()
    expect(page.locator(".zoomed button")).to_have_count(0)


def test_the_log_is_filtered_by_group_host_rank_and_words(page: Page) -> None:
    lines = page.locator(".log-line")
    expect(lines.first).to_be_visible()
    page.get_by_label("All groups").select_option(DNN)
    page.get_by_label("All hosts").select_option("algo-4")
    page.get_by_label("All programs").select_option("3")
    expect(page.locator(".log-line", has_text="algo-4[3]").first).to_be_visible()
    expect(page.locator(".log-line", has_not_text="algo-4[3]")).to_have_count(0)
    page.get_by_label("Search in the lines").fill("ACCURACY 0.")
    expect(lines).to_have_count(1)
    expect(page.locator(".log-line mark")).to_have_text("accuracy 0.")
    command = page.locator("#logs .source code").inner_text()
    assert f"/{DNN}/algo-4/3 --grep '(?i)ACCURACY 0\\.'" in command
    page.get_by_label("Search in the lines").fill("no such words")
    expect(page.locator(".log-note")).to_have_text("no such line")


def test_all_of_a_log_can_be_scrolled_through(page: Page) -> None:
    expect(page.locator(".log-line").first).to_be_visible()
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator(".log-line", has_text="executors, pipeline").first).to_be_visible()
    for _ in range(6):
        page.locator(".log-lines").evaluate("e => e.scrollTop = e.scrollHeight")
        page.wait_for_timeout(60)
    expect(page.locator(".log-line", has_text="done, accuracy")).to_have_count(4)


def test_what_a_job_writes_stays_text(page: Page) -> None:
    page.get_by_label("Search in the lines").fill("onerror")
    line = page.locator(".log-line")
    expect(line).to_have_count(1)
    assert EVIL in line.locator(".what").inner_text()
    assert page.locator(".log-lines img, .log-lines script").count() == 0
    assert page.title() == "heterogeneous · headrace"
    page.get_by_label("Search in the lines").fill("yyyy")
    expect(line).to_contain_text("45,904 more bytes")


CONTRAST = """(selector) => {
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((v) => linear(Number(v) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  let back = element;
  while (getComputedStyle(back).backgroundColor === "rgba(0, 0, 0, 0)") back = back.parentElement;
  const colours = [getComputedStyle(element).color, getComputedStyle(back).backgroundColor];
  const [a, b] = colours.map(light).sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""
TEXTS = [
    "h1", ".facts", ".badge", ".source code", ".figure .name", ".log-line .when", ".track .segment[data-state=running]",
    ".legend button", ".log-line .who", "nav a", "th",
]  # fmt: skip
BACK = "getComputedStyle(document.documentElement).backgroundColor"
NIGHT = "rgb(15, 21, 25)"


def test_light_and_dark_follow_the_system_and_the_reader(browser: Browser, ui: Ui, made: RunPaths) -> None:
    context = browser.new_context(color_scheme="dark", viewport={"width": 1600, "height": 900})
    tab = Tab(context.new_page(), ui)
    page = tab.open("/runs/heterogeneous")
    drawn(page, "cpu")
    page.locator("th").first.wait_for()
    for scheme in ("dark", "light"):
        assert (page.evaluate(BACK) == NIGHT) == (scheme == "dark")
        found = {selector: page.evaluate(CONTRAST, selector) for selector in TEXTS}
        assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}, scheme
        if scheme == "dark":
            page.get_by_role("button", name="Light").click()
            drawn(page, "cpu")
    page.reload()
    drawn(page, "cpu")
    assert page.evaluate(BACK) != NIGHT, "the choice is kept"
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(BACK) == NIGHT
    assert tab.complaints == []
    context.close()


def test_it_is_readable_in_a_narrow_window(browser: Browser, ui: Ui, made: RunPaths) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800})
    tab = Tab(context.new_page(), ui)
    for path in ("/", "/runs/heterogeneous", "/compare?run=homogeneous&run=heterogeneous"):
        page = tab.open(path)
        page.locator("[data-field]").first.wait_for()
        if "/runs/" in path:
            drawn(page, "cpu")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, f"{path} scrolls sideways"
    assert tab.complaints == []
    context.close()


UNNAMED = """nodes => nodes
  .filter(n => n.checkVisibility() && !(n.innerText || n.ariaLabel || n.title || n.labels?.length))
  .map(n => n.outerHTML)"""


def test_it_can_be_used_by_keyboard_alone(tab: Tab) -> None:
    page = tab.open("/")
    expect(page.locator("#runs tbody tr")).to_have_count(6)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("heterogeneous")
    link = page.get_by_role("link", name="heterogeneous", exact=True)
    for _ in range(12):
        page.keyboard.press("Tab")
        if link.evaluate("e => e === document.activeElement"):
            break
    outline = link.evaluate("e => getComputedStyle(e).outlineStyle")
    assert outline == "solid", "the focus is seen"
    page.keyboard.press("Enter")
    drawn(page, "cpu")
    page.locator("[data-chart=cpu] .plot").focus()
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    page.keyboard.press("Enter")
    expect(page.locator(".log-line.hit").first).to_be_visible()
    page.keyboard.press("+")
    expect(page.locator(".zoomed button")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".zoomed button")).to_have_count(0)
    assert page.locator("button, a, input, select").evaluate_all(UNNAMED) == []


def test_the_comparison_shows_ratios_and_can_be_changed(tab: Tab) -> None:
    page = tab.open("/compare?run=homogeneous&run=heterogeneous")
    row = page.locator("tr", has_text="Step time")
    expect(row.locator(".ratio").first).to_contain_text("×")
    expect(page.locator("#choose select").first).to_have_value(re.compile("homogeneous-2026"))
    chosen = page.locator("#choose select").nth(2)
    chosen.select_option(index=2)
    expect(page.locator("table.compared th[scope=col]")).to_have_count(3)
    drawn(page, "value:train:loss")
    curves = page.locator("[data-chart='value:train:loss'] .legend button")
    expect(curves).to_have_count(3)
    area = page.locator("[data-chart='value:train:loss'] .plot")
    for axis, first in (("step", "16"), ("since", "11")):
        page.get_by_label("Over what").select_option(axis)
        expect(page.locator("[data-chart='value:train:loss']")).to_have_attribute("data-axis", axis)
        area.focus()
        page.keyboard.press("Home")
        expect(page.locator("#spoken")).to_have_text(re.compile(rf"^(0:)?{first}[^0-9]"))
    page.get_by_label("What the curves show").select_option("step_time")
    drawn(page, "step_time")
    expect(page.get_by_label("Over what")).to_be_disabled()
    tab.page.goto(tab.ui.base + "/compare")
    expect(page.locator("#result")).to_contain_text("Choose two runs or more.")


def test_a_wrong_token_shows_nothing(browser: Browser, ui: Ui) -> None:
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(f"{ui.base}/?token=wrong")
    assert answer is not None
    assert answer.status == 403
    expect(page.locator("body")).to_contain_text("needs the address that `headrace ui` printed")
    context.close()


def test_a_damaged_run_shows_what_can_be_shown(browser: Browser, ui: Ui, made: RunPaths, home: Path) -> None:
    paths = make_run(home / "damaged" / "runs", "broken", seconds=20)
    target = home / "runs" / paths.id
    paths.root.rename(target)
    RunPaths(target).header.write_bytes(b"{")
    context = browser.new_context(viewport={"width": 1600, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(ui.url("/"))
    page.get_by_role("link", name=paths.id).click()
    drawn(page, "cpu", "step_time")
    expect(page.locator("#trouble")).to_contain_text("Parts of this run cannot be read.")
    expect(page.locator("#trouble")).to_contain_text("run.json")
    expect(page.locator(".lane")).to_have_count(4)
    expect(page.locator(".log-line").first).to_be_visible()
    expect(page.locator("#figures")).to_contain_text("the run cannot be read")
    assert errors == []
    context.close()
    target.rename(home / "damaged" / paths.id)


def test_a_run_that_goes_on_is_followed_live(tab: Tab, home: Path) -> None:
    paths = create_run("live", runs=home / "runs")
    adopt(paths)
    plan(paths, {DNN: ("ml.g5.xlarge", ["algo-1"])})
    rank, now = Stream(DNN, "algo-1", "0"), time.time()
    where = {"group": DNN, "host": "algo-1"}
    with (
        EventWriter(paths.events("engine")) as events,
        MetricWriter(paths.metrics(rank)) as metrics,
        LogWriter(paths.log(rank)) as log,
    ):
        events.write(HostStarted(t=now, pid=1, **where))
        log.write_line("o", b"first words")
        page = tab.open("/runs/live")
        expect(page.locator(".badge").first).to_have_text("Starting")
        expect(page.locator("#live")).to_have_text("live")
        expect(page.get_by_label("follow")).to_be_checked()
        events.write(HostRegistered(t=now + 0.1, **where))
        events.write(JobStarted(t=now + 0.1))
        events.write(ProgramStarted(t=now + 0.2, stream="0", pid=2, **where))
        expect(page.locator(".track .segment[data-state=running]")).to_have_count(1)
        for second in range(8):
            metrics.write(loader_second(now + second, wait=0.1))
        drawn(page, "step_time")
        log.write_line("o", b"later words")
        expect(page.locator(".log-line", has_text="later words")).to_be_visible()
        events.write(ProgramExited(t=now + 8, stream="0", exit_code=0, **where))
        events.write(RunFinished(t=now + 8.2, status=Status.COMPLETED))
        expect(page.locator(".badge").first).to_have_text("Completed")
        expect(page.locator("#live")).to_have_text("ended")
        expect(page.locator(".figure", has_text="Steps")).to_contain_text("80")


@pytest.fixture
def writing(home: Path) -> Iterator[tuple[RunPaths, EventWriter, LogWriter]]:
    """A run that goes on, with one line in its log."""
    paths = create_run("writing", runs=home / "runs")
    adopt(paths)
    plan(paths, {DNN: ("ml.g5.xlarge", ["algo-1"])})
    with EventWriter(paths.events("engine")) as events, LogWriter(paths.log(Stream(DNN, "algo-1", "0"))) as log:
        events.write(HostStarted(t=time.time(), pid=1, group=DNN, host="algo-1"))
        log.write_line("o", b"first words")
        yield paths, events, log
        events.write(RunFinished(t=time.time(), status=Status.STOPPED))


def test_a_line_that_comes_after_the_log_was_read_and_before_the_first_news_is_shown(
    tab: Tab, writing: tuple[RunPaths, EventWriter, LogWriter]
) -> None:
    paths, _, log = writing
    held: list[Route] = []
    tab.page.route("**/live", lambda route: held.append(route), times=1)
    page = tab.open(f"/runs/{paths.id}")
    expect(page.locator(".log-line", has_text="first words")).to_be_visible()
    while not held:  # the test's own timeout bounds it
        page.wait_for_timeout(20)
    log.write_line("o", b"words in between")
    held.pop().continue_()
    expect(page.locator(".log-line", has_text="words in between")).to_be_visible()


def test_a_line_that_comes_while_a_page_of_the_log_is_on_its_way_is_shown(
    tab: Tab, writing: tuple[RunPaths, EventWriter, LogWriter]
) -> None:
    paths, events, log = writing
    page = tab.open(f"/runs/{paths.id}")
    expect(page.locator(".log-line", has_text="first words")).to_be_visible()
    expect(page.locator("#live")).to_have_text("live")
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/logs?*", lambda route: held.append((route, route.fetch())), times=1)
    page.get_by_role("button", name="End", exact=True).click()
    while not held:  # the test's own timeout bounds it
        page.wait_for_timeout(20)
    log.write_line("o", b"words meanwhile")
    events.write(HostRegistered(t=time.time(), group=DNN, host="algo-1"))  # its news say that of the line, too
    expect(page.locator(".track .segment[data-state=ready]")).to_have_count(1)
    route, answer = held.pop()
    route.fulfill(response=answer)
    expect(page.locator(".log-line", has_text="words meanwhile")).to_be_visible()


JOB = """\
job_name: real
source_dir: code
entry_point: train.py
instance_groups:
  - {name: dnn, type: ml.m5.large, count: 1}
engines:
  local:
    isolation: none
    ports: {control: CONTROL, feed: FEED, master: MASTER}
"""
SCRIPT = """\
import pathlib, time
print("training begins", flush=True)
go = pathlib.Path("GO")
deadline = time.monotonic() + 60
while not go.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
print("training ends", flush=True)
"""


def test_a_real_job_is_seen_from_its_start_to_its_end(tab: Tab, home: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT.replace("GO", str(tmp_path / "go")))
    ports = iter(free_ports(3))
    (tmp_path / "job.yaml").write_text(re.sub("CONTROL|FEED|MASTER", lambda _: str(next(ports)), JOB))
    page = tab.open("/")
    expect(page.locator("#live")).to_have_text("live")
    command = [*COMMAND, "run", "--quiet", str(tmp_path / "job.yaml")]
    job = subprocess.Popen(command, env=tab.ui.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        row = page.locator("tr", has=page.get_by_role("link", name="real", exact=True))
        expect(row).to_contain_text("Training")
        row.get_by_role("link", name="real", exact=True).click()
        expect(page.locator(".log-line", has_text="training begins")).to_be_visible()
        expect(page.get_by_label("follow")).to_be_checked()
        (tmp_path / "go").touch()
        expect(page.locator(".log-line", has_text="training ends")).to_be_visible()
        expect(page.locator(".badge").first).to_have_text("Completed")
        assert job.wait(30) == 0
        expect(page.locator("#events")).to_contain_text("rank 0 ended with exit code 0")
        expect(page.locator("#tables")).to_contain_text("dnn/algo-1[0]")
    finally:
        (tmp_path / "go").touch()
        job.wait(60)


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    found = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return found

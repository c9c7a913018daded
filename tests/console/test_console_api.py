"""The server of the page, in a process of its own: who may ask, and what is answered."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest
from made_runs import DATA, DNN, make_run
from page_server import COMMAND, Ui, start_ui

from headrace.cli.main import invoke
from headrace.console import app
from headrace.console.app import FRESH, news_of
from headrace.grid.grid_record import GridRecord
from headrace.grid.journal import Journal
from headrace.grid.read_grid import FILE
from headrace.install_hint import install_hint
from headrace.runs import EventWriter, HostSecond, LogWriter, MetricWriter, RunPaths, Status, Stream, adopt, create_run
from headrace.runs.events import DataWorkerLost, RunFinished
from patience import allowed, until

PATHS = [
    "/", "/compare", "/runs/x", "/static/js/run.js", "/static/nothing", "/nothing", "/api/runs", "/api/live",
    "/api/runs/x/report", "/api/runs/x/live", "/api/compare",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(home: Path) -> RunPaths:
    make_run(home / "runs", "homogeneous", seconds=40, data_hosts=0, starved=True)
    return make_run(home / "runs", "heterogeneous", seconds=40)


@pytest.mark.promise("ui", "the page shows the figures of the commands, serves who has its token, and changes nothing")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=T&token=T"])
@pytest.mark.promise("security", "the page of `headrace ui` wants a token and answers no other site")
def test_without_the_token_everything_is_forbidden(ui: Ui, path: str, query: str) -> None:
    answer = ui.client.get(path + query.replace("T", ui.token))
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")


def test_a_wrong_cookie_and_one_of_another_port_are_forbidden(ui: Ui) -> None:
    port = ui.base.rpartition(":")[2]
    for name, value, status in (
        (f"headrace-ui-{port}", ui.token, 200),
        (f"headrace-ui-{port}", ui.token[:-1], 403),
        ("headrace-ui-1", ui.token, 403),
    ):
        assert ui.client.get("/api/runs", headers={"cookie": f"{name}={value}"}).status_code == status


@pytest.mark.promise("security", "the page of `headrace ui` wants a token and answers no other site")
def test_the_first_page_gives_a_cookie_that_no_script_and_no_other_site_gets(ui: Ui) -> None:
    with httpx.Client(base_url=ui.base, verify=False) as client:
        answer = client.get("/", params={"token": ui.token})
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert all(words in cookie for words in ("HttpOnly", "SameSite=Strict", "Path=/"))
        assert client.get("/api/runs").status_code == 200
        assert client.get("/api/runs", headers={"sec-fetch-site": "same-origin"}).status_code == 200
        for site in ("cross-site", "same-site"):
            assert client.get("/api/runs", headers={"sec-fetch-site": site}).status_code == 403
        assert client.get("/api/runs", headers={"origin": ui.base}).status_code == 200
        for origin in ("https://evil.example", "null", "", "http://127.0.0.1:1", ui.base.replace("http:", "https:")):
            for method in ("GET", "HEAD", "POST", "OPTIONS"):
                headers = {"origin": origin, "accept": "text/event-stream"}
                assert client.request(method, "/api/runs", headers=headers).status_code == 403, (method, origin)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9000", 200),
        ("127.0.0.1", 200),
        ("[::1]:1", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_only_names_of_this_machine_are_answered(ui: Ui, host: str, status: int) -> None:
    answer = ui.client.get(ui.url("/api/runs"), headers={"host": host})
    assert answer.status_code in ({status} | ({400} if not host else set()))


@pytest.mark.promise("security", "a command line shows no secret and no token")
def test_a_browser_is_told_no_token_but_a_file_of_the_users_alone_that_is_good_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, told = tmp_path / "browser", tmp_path / "told"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {told}.part && mv {told}.part {told}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    before = os.umask(0)
    try:
        ui = start_ui(tmp_path / "home", "--open")
    finally:
        os.umask(before)
    try:
        until(told.exists)
        page = Path(told.read_text().removeprefix("file://"))
        assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        token = page.read_text().partition("token=")[2].partition('"')[0]
        assert token not in told.read_text()
        assert token != ui.token
        first = ui.client.get(f"{ui.base}/", params={"token": token})
        assert first.status_code == 200
        assert ui.client.get(f"{ui.base}/api/runs").status_code == 200  # by its cookie
        ui.client.cookies.clear()
        assert ui.client.get(f"{ui.base}/", params={"token": token}).status_code == 403
    finally:
        assert ui.stop() == 0
    assert not page.exists()


def test_nothing_can_be_changed_and_no_file_outside_is_served(ui: Ui, made: RunPaths) -> None:
    assert ui.client.post(ui.url("/api/runs")).status_code == 405
    assert ui.client.delete(ui.url(f"/api/runs/{made.id}/report")).status_code == 405
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/api/runs/..%2f..%2fetc/timeline",
        "/api/runs/.hidden/timeline",
    ):
        assert ui.client.get(path, params={"token": ui.token}).status_code == 404


def test_a_page_loads_nothing_from_elsewhere() -> None:
    source = Path(__file__).parents[2] / "src" / "headrace"
    static, templates = source / "console" / "static", source / "console" / "templates"
    for path in (*static.rglob("*"), *templates.glob("*"), *(source / "insight/render/templates").glob("b*")):
        if path.suffix in {".html", ".css", ".js"}:
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http:" not in text, path
            assert "https:" not in text, path
            assert "innerHTML" not in text, path
            assert " style=" not in text, path
            assert text.count("|safe") == text.count("block.markup|safe"), "all text but a chart is escaped"


def answer_of(ui: Ui, path: str, **query: str | float) -> object:
    answer = ui.client.get(path, params={**query, "token": ui.token})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


@pytest.fixture
def printed(ui: Ui, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns what a command prints, over the runs of the page."""
    monkeypatch.setenv("HEADRACE_HOME", ui.env["HEADRACE_HOME"])

    def run(*arguments: str) -> str:
        assert invoke(arguments) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", ["report", "status", "timeline", "metrics"])
def test_a_document_of_a_run_is_that_of_a_command(
    ui: Ui, made: RunPaths, printed: Callable[..., str], command: str
) -> None:
    assert answer_of(ui, f"/api/runs/{made.id}/{command}") == json.loads(printed(command, made.id, "--output", "json"))


def test_lists_comparisons_and_logs_are_those_of_commands(ui: Ui, made: RunPaths, printed: Callable[..., str]) -> None:
    listed = [line for line in json.loads(printed("ps", "--all", "--output", "json")) if line["exit_code"] is not None]
    assert all(line["bytes"] for line in listed)
    ended = [line | {"bytes": None} for line in listed]  # the page looks at no sizes
    assert [line for line in answer_of(ui, "/api/runs") if line["exit_code"] is not None] == ended
    names = ["homogeneous", "heterogeneous"]
    answer = ui.client.get(ui.url("/api/compare?run=homogeneous&run=heterogeneous"))
    assert answer.json() == json.loads(printed("compare", *names, "--output", "json"))
    lines = [json.loads(line) for line in printed("logs", made.id, "--output", "json").splitlines()]
    page = answer_of(ui, f"/api/runs/{made.id}/logs", limit=1000)
    fields = ("t", "group", "host", "stream", "kind", "text")
    assert [{name: line[name] for name in fields} for line in page["lines"]] == [
        line | {"text": line["text"].replace("\x1b[33m", "").replace("\x1b[0m", "")} for line in lines
    ]


def test_commands_show_it_as_text(made: RunPaths, printed: Callable[..., str]) -> None:
    assert "data worker lost: executor 7 was killed (SIGKILL); replaced" in printed("timeline", made.id)
    shown = printed("metrics", made.id, "--points", "30")
    assert "CPU by group, %" in shown
    assert "▇" in shown


def test_a_stretch_of_time_is_finer(ui: Ui, made: RunPaths) -> None:
    whole = answer_of(ui, f"/api/runs/{made.id}/metrics", points=10)
    part = answer_of(ui, f"/api/runs/{made.id}/metrics", points=10, start=whole["start"] + 20, end=whole["start"] + 28)
    assert (whole["width"], part["width"]) == (10, 1)
    assert len(part["t"]) <= 11


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/runs/no-such/report", 404, "no run 'no-such'"),
        ("/api/runs/no-such/live", 404, "no run 'no-such'"),
        ("/api/compare?run=homogeneous", 422, "two runs or more"),
        ("/api/runs/homogeneous/metrics?start=soon", 422, "start is 'soon'"),
        ("/api/runs/homogeneous/metrics?start=nan", 422, "start is 'nan'"),
        ("/api/runs/homogeneous/metrics?start=2&end=1", 422, "start (2) is after end (1)"),
        ("/api/runs/homogeneous/metrics?points=abc", 422, "points is 'abc', which is not a whole number"),
        ("/api/runs/homogeneous/logs?after=[1]", 422, "is not a place in the logs"),
        ("/api/runs/homogeneous/logs?limit=99999", 422, "a page has 1 to 1000 lines"),
    ],
)
def test_a_mistake_is_told(ui: Ui, made: RunPaths, path: str, status: int, words: str) -> None:
    answer = ui.client.get(ui.url(path))
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_the_docs_figures_hold_a_million_steps_in_few_points(ui: Ui, home: Path) -> None:
    long = make_run(home / "runs", "long", seconds=5000, data_hosts=0, faults=False, log_every=500)
    found = answer_of(ui, f"/api/runs/{long.id}/metrics", points=99999)
    assert all(len(line["values"]) <= 2001 for chart in found["charts"] for line in chart["lines"])
    found = answer_of(ui, f"/api/runs/{long.id}/metrics")
    assert len(found["t"]) <= 401
    assert found["records"] == 4 * 5000 + 2 * 5003 + 2499


def test_live_says_what_is_new_resumes_and_ends(ui: Ui, home: Path) -> None:
    paths = create_run("growing", runs=home / "runs")
    adopt(paths)  # this process answers for it
    stream = Stream(DNN, "algo-1", "host")
    with MetricWriter(paths.metrics(stream)) as metrics, LogWriter(paths.log(Stream(DNN, "algo-1", "0"))) as log:
        with httpx.stream("GET", ui.url(f"/api/runs/{paths.id}/live"), timeout=20) as answer:
            lines = answer.iter_lines()
            assert answer.headers["content-type"].startswith("text/event-stream")
            seen = next_event(lines)
            assert seen["data"] == {"events": 0, "metrics": 0, "logs": 0, "finished": False}
            metrics.write(HostSecond(t=time.time(), cpu=1.0, cores=1, rss=1, processes=1))
            assert next_event(lines)["data"]["metrics"] == 1
            log.write_line("o", b"hello")
            seen = next_event(lines)
            assert seen["data"]["logs"] > 0
            time.sleep(1.2)  # two looks at the files: time for a server that says things twice
            metrics.write(HostSecond(t=time.time(), cpu=2.0, cores=1, rss=1, processes=1))
            seen = next_event(lines)
            assert seen["data"]["metrics"] == 2
        again = {"last-event-id": seen["id"]}
        with httpx.stream("GET", ui.url(f"/api/runs/{paths.id}/live"), headers=again, timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("retry:")
            with EventWriter(paths.events("engine")) as events:
                events.write(RunFinished(t=time.time(), status=Status.COMPLETED))
            end = next_event(lines)  # nothing before it: what was known is not told again
            assert (end["event"], end["data"]["finished"]) == ("end", True)
            assert list(lines) == []


def next_event(lines: object) -> dict[str, object]:
    found: dict[str, object] = {}
    for line in lines:  # type: ignore[attr-defined]
        if not line and "event" in found:
            return found
        name, _, value = line.partition(": ")
        if name in {"id", "event"}:
            found[name] = value
        if name == "data":
            found["data"] = json.loads(value)
    raise AssertionError("the stream ended")


def test_a_page_that_goes_takes_its_connection_along(ui: Ui, home: Path) -> None:
    paths = create_run("open", runs=home / "runs")
    adopt(paths)
    server = psutil.Process(ui.process.pid)
    with contextlib.ExitStack() as pages:
        ports = set()
        for _ in range(3):
            client = pages.enter_context(httpx.Client(verify=False))
            answer = pages.enter_context(client.stream("GET", ui.url(f"/api/runs/{paths.id}/live")))
            ports.add(answer.extensions["network_stream"].get_extra_info("client_addr")[1])
        held = lambda: {each.raddr.port for each in server.net_connections("tcp") if each.raddr} & ports  # noqa: E731
        assert held() == ports, "each page has a connection of its own"
    until(lambda: not held(), 10, "connections are closed")


def test_a_damaged_run_shows_what_can_be_read_and_says_what_cannot(ui: Ui, home: Path, made: RunPaths) -> None:
    broken = RunPaths(home / "runs" / "damaged-20261120-190000-abcd")
    shutil.copytree(made.root, broken.root)
    broken.header.write_text('{"run_id": "dam')
    with broken.events("engine").open("ab") as file:
        file.write(b'{"event":"no_such","t":1}\n{"event":"host_lo')
    with broken.metrics(Stream(DNN, "algo-3", "0")).open("ab") as file:
        file.write(b"\xff\xff\n")
    listed = {line["run_id"] for line in answer_of(ui, "/api/runs")}
    assert made.id in listed
    assert broken.id not in listed
    assert [broken.id in one["path"] for one in answer_of(ui, "/api/unreadable")] == [True]
    for what in ("report", "status"):  # an answer, so that a browser's console shows no error
        found = answer_of(ui, f"/api/runs/{broken.id}/{what}")
        assert "run.json: it holds no complete record" in found["error"]
        assert found["run_id"] == broken.id
        assert found["damage"][0]["path"].endswith("run.json")
    metrics = answer_of(ui, f"/api/runs/{broken.id}/metrics")
    assert {"cpu", "step_time"} <= {chart["name"] for chart in metrics["charts"]}
    timeline = answer_of(ui, f"/api/runs/{broken.id}/timeline")
    assert [group["name"] for group in timeline["groups"]] == [DATA, DNN]
    assert len(timeline["damage"]) == 3
    assert [one["path"] for one in metrics["damage"]] == [one["path"] for one in timeline["damage"]]
    assert answer_of(ui, f"/api/runs/{broken.id}/logs")["lines"]
    shutil.rmtree(broken.root)
    assert ui.client.get(ui.url(f"/api/runs/{broken.id}/timeline")).status_code == 404


def test_a_report_is_made_anew_when_the_run_has_grown(ui: Ui, home: Path) -> None:
    paths = make_run(home / "runs", "regrown", seconds=20)
    assert answer_of(ui, f"/api/runs/{paths.id}/timeline")["events"][-1]["event"] == "run_finished"
    before = answer_of(ui, f"/api/runs/{paths.id}/report")
    lost = DataWorkerLost(t=before["started"], group=DATA, host="algo-2", reason="silent", stream="tf-dispatcher")
    with EventWriter(paths.events("late")) as events:
        events.write(lost)
    until(lambda: answer_of(ui, f"/api/runs/{paths.id}/report")["notes"] != before["notes"])  # not at every question
    assert answer_of(ui, f"/api/runs/{paths.id}/timeline")["groups"][0]["hosts"][1]["marks"]


def test_no_run_yet(tmp_path: Path) -> None:
    empty = start_ui(tmp_path)
    try:
        assert empty.client.get(empty.url("/api/runs")).json() == []
        assert empty.client.get(empty.url("/api/unreadable")).json() == []
    finally:
        assert empty.stop() == 0


def test_ctrl_c_ends_it_although_pages_are_open(tmp_path: Path) -> None:
    running = start_ui(tmp_path)
    with httpx.stream("GET", running.url("/api/live"), timeout=20) as answer:
        next(answer.iter_raw())
        begun = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - begun < allowed(5)


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "ui", "--no-open", "--port", str(port)], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 2
    assert f"error: 127.0.0.1:{port} cannot be listened on: Address already in use" in done.stderr
    assert "hint: choose another with --port" in done.stderr


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, home: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from headrace.cli.main import invoke; sys.exit(invoke(['ui']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "error: headrace ui needs uvicorn, which is not installed" in done.stderr
    assert f"hint: {install_hint('ui')}" in done.stderr


def test_an_unknown_run_is_told_before_anything_is_started(ui: Ui) -> None:
    done = subprocess.run(
        [*COMMAND, "ui", "--no-open", "no-such"], env=ui.env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "no run 'no-such'" in done.stderr


@pytest.mark.promise("ui", "the page shows the figures of the commands, serves who has its token, and changes nothing")
def test_nothing_is_written_to_a_run(ui: Ui, made: RunPaths) -> None:
    def files() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in made.root.rglob("*"))

    before = files()
    for path in ("timeline", "metrics", "report", "status", "logs"):
        answer_of(ui, f"/api/runs/{made.id}/{path}")
    assert files() == before


def test_a_small_answer_does_not_wait_for_an_acknowledgement(ui: Ui) -> None:
    times = []
    for _ in range(10):
        begun = time.perf_counter()
        ui.client.get(ui.url("/static/mark.svg"))
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.035, "Nagle's algorithm is on: each answer takes 40 ms more"


def test_sigterm_ends_it_too(tmp_path: Path) -> None:
    running = start_ui(tmp_path)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(20) == 0
    running.stop()


def test_the_answers_are_strict_json(ui: Ui, made: RunPaths) -> None:
    text = ui.client.get(ui.url(f"/api/runs/{made.id}/metrics")).content
    assert b"NaN" not in text
    msgspec.json.decode(text)


def test_reading_a_journal_that_nobody_writes_is_no_news_of_its_grid(tmp_path: Path) -> None:
    """A reader makes an empty log beside it, and removes it: the page of 10,000 lines was made anew for each."""
    path = tmp_path / FILE
    with contextlib.closing(Journal(path, create=True)) as journal:
        journal.begin(GridRecord("quiet", "/nowhere/array.yaml", "d", 1.0, ()))
    log = path.with_name(f"{path.name}-wal")
    before = app._stamp(path)[0]
    with contextlib.closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
        assert log.exists(), "a reader makes a log"
        assert app._stamp(path)[0] == before
    assert not log.exists()
    assert app._stamp(path)[0] == before
    with contextlib.closing(Journal(path)) as journal:
        journal.finish(2.0)
        assert app._stamp(path)[0] != before


def test_a_write_in_the_same_tick_as_the_one_before_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of SQLite's that begins anew keeps its size: then neither size nor time tells that a grid has ended."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    path = tmp_path / "grids" / "quick" / FILE
    path.parent.mkdir(parents=True)
    look = news_of(path)
    with contextlib.closing(Journal(path, create=True)) as journal:
        journal.begin(GridRecord("quick", "/nowhere/array.yaml", "d", 1.0, ()))
        monkeypatch.setattr(app, "_stamp", lambda path, told=app._stamp: ("the same", told(path)[1]))
        before = look()
        assert look() == before
        assert not before.last
        journal.finish(2.0)
        after = look()
        assert after.last
        assert after.id != before.id
    long_ago = time.time() - 2 * FRESH
    os.utime(path, (long_ago, long_ago))
    assert not app._stamp(path)[1], "it is read no more while nobody writes"

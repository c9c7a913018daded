"""What holds for every test: it leaves nothing behind, and in CI it is not skipped."""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Generator, Iterator

import pytest

import apart
import leaks
from notes import NOTES, note
from objectstore import s3, s3_endpoint

__all__ = ["s3", "s3_endpoint"]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A worker of pytest-xdist stands apart from the others."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = apart.stand_apart()
        config.option.basetemp = f"{directory}/p"  # xdist's own is so long that Unix sockets in it have no room
        config.add_cleanup(functools.partial(apart.come_back, directory))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its last words on."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["notes"] = NOTES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Takes the last words of a worker."""
    output: dict[str, dict[str, list[str]]] = getattr(node, "workeroutput", {})
    for section, lines in output.get("notes", {}).items():
        for line in lines:
            note(section, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the last words, and which files took the most time."""
    for section, lines in NOTES.items():
        terminalreporter.section(section)
        for line in lines:
            terminalreporter.write_line(line)
    seconds: collections.Counter[str] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("::")[0]] += report.duration
    if sum(seconds.values()) > 60:
        terminalreporter.section("slowest files")
        for name, total in seconds.most_common(25):
            terminalreporter.write_line(f"{total:7.1f}s {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that talk to the object store are marked as that."""
    for item in items:
        if {"s3", "s3_endpoint"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("s3")


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, a process, a descriptor or shared memory behind."""
    with leaks.check():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip into a failure where everything must run: CI=true."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI must run everything: {report.longrepr}"
    return report

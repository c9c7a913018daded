"""What holds for every test: it leaves nothing behind, and in CI it is not skipped."""

from __future__ import annotations

import collections
import compileall
import functools
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import execnet
import pytest
from xdist.scheduler import LoadScopeScheduling

import apart
import headrace
import leaks
from notes import NOTES, note
from objectstore import s3, s3_endpoint, stays_serving

__all__ = ["s3", "s3_endpoint"]

# Imports of these take seconds: one worker has them in memory, and the others their cores for something else.
FRAMEWORKS = ("test_framework", "test_measured", "test_tensorflow")
LONG = ("adapters", "examples", "proof", "console", "engines", "cli", "feed")  # folders that workers begin with

# Where Python may not keep what it compiles, pytest still does, for the next run.
sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes a worker of pytest-xdist at home in its box."""
    if apart.BOX in os.environ:
        folder = apart.settle()
        # xdist's own is so long that Unix sockets in it have no room
        config.option.basetemp = tempfile.mkdtemp(prefix="p", dir=folder)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Gives a process that runs all tests one after the other what workers have in their boxes, as far as it may."""
    config = session.config
    if not hasattr(config, "workerinput"):
        # Tests start thousands of processes, often where Python may not keep what it compiled.
        compileall.compile_dir(Path(headrace.__file__).parent, quiet=2)
    if not hasattr(config, "workerinput") and not config.getoption("numprocesses", None):
        config._tmp_path_factory.getbasetemp()  # pytest's own folders stay where people look for them
        apart.stand_apart()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means: as many workers as pay, none where there are no boxes."""
    return apart.workers()


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[execnet.XSpec]) -> None:
    """Puts every worker into a box."""
    if why := apart.why_not():
        raise pytest.UsageError(f"tests cannot run side by side (use -n 0): there are no boxes here: {why}")
    for place in range(len(specs)):
        folder = Path(tempfile.mkdtemp(prefix="hr-"))
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        specs[place] = execnet.XSpec(f"popen//id={specs[place].id}//python={apart.boxed_python(folder)}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker passes its notes on."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["notes"] = NOTES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Takes the notes of a worker."""
    output: dict[str, dict[str, list[str]]] = getattr(node, "workeroutput", {})
    for section, lines in output.get("notes", {}).items():
        for line in lines:
            note(section, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the notes, and which files took the most time."""
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


class Schedule(LoadScopeScheduling):
    """Gives a worker that is free the next test; those that share what their module made stay together."""

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        if path.stem.startswith(FRAMEWORKS):
            return "frameworks"
        return str(path) if _makes_for_a_module(self.config.rootpath / path) else nodeid


@functools.cache
def _makes_for_a_module(path: Path) -> bool:
    """Whether a file of tests, or its folder, has a fixture that a module's tests share."""
    return any('scope="module"' in each.read_text() for each in (path, path.with_name("conftest.py")) if each.exists())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Schedule:
    """How tests are spread over workers."""
    config.option.loadscopereorder = False  # they come in the order in which they are to begin
    return Schedule(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks tests that talk to the object store."""
    if {"s3", "s3_endpoint"} & set(getattr(item, "fixturenames", ())):
        item.add_marker("s3")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has workers begin with what takes long."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        ranks = {folder: rank for rank, folder in enumerate(LONG)}
        items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))


def pytest_collection_finish() -> None:
    """Leaves out of every later garbage collection what is there by now; tests collect often, for what they left."""
    gc.freeze()


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, process, descriptor or shared memory behind, or ends the S3 server of all."""
    with stays_serving(), leaks.check():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip into a failure where everything must run: CI=true."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI must run everything: {report.longrepr}"
    return report

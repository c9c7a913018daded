"""What holds for every test: it leaves nothing behind, and in CI it is not skipped."""

from __future__ import annotations

import collections
import compileall
import functools
import gc
import itertools
import os
import re
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
import needs
from notes import NOTES, note
from objectstore import s3, s3_endpoint, stays_serving

__all__ = ["s3", "s3_endpoint"]

# Imports of these take seconds: one worker has them in memory, and the others their cores for something else.
FRAMEWORKS = ("test_framework", "test_measured", "test_tensorflow")
COMMANDS = "commands that bring it"  # of a skipped test, in its report
CPU = "CPU seconds"  # of a test, in its last report
BEGAN = pytest.StashKey[float]()
LONG = ("adapters", "examples", "proof", "console", "engines", "cli", "feed")  # folders that workers begin with

# Where Python may not keep what it compiles, pytest still does, for the next run.
sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes a worker of pytest-xdist at home in its box."""
    if needs.NEEDS["libmpi"].why_not():
        # mpi4py raises what Lightning does not expect where it finds no MPI; asked for one, an ImportError says so
        os.environ.setdefault("MPI4PY_MPIABI", "openmpi")
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
    skipped = [dict(report.user_properties).get(COMMANDS) for report in terminalreporter.stats.get("skipped", ())]
    if lines := needs.summary([commands for commands in skipped if commands]):
        terminalreporter.section("skipped, and what would bring it")
        for line in lines:
            terminalreporter.write_line(line)
    seconds: collections.Counter[str] = collections.Counter()
    cpu: collections.Counter[str] = collections.Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            name = report.nodeid.split("::")[0]
            seconds[name] += report.duration
            cpu[name] += dict(report.user_properties).get(CPU, 0.0)
    if sum(seconds.values()) > 60:
        terminalreporter.section("files that cost most: CPU seconds with those of their programs, and by the clock")
        for name, total in cpu.most_common(25):
            terminalreporter.write_line(f"{total:7.1f}s {seconds[name]:7.1f}s {name}")
        terminalreporter.write_line(f"{cpu.total():7.1f}s {seconds.total():7.1f}s in all")


class Schedule(LoadScopeScheduling):
    """Gives a worker that is free the next test; those that share what their module made stay together."""

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        if path.stem.startswith(FRAMEWORKS):
            return "frameworks"
        return str(path) if _makes_for_a_module(self.config.rootpath / path) else nodeid


@functools.cache
def _makes_for_a_module(path: Path) -> bool:
    """Whether a file of tests has a fixture that a module's tests share, or names one of a folder that has such."""
    shared, text, folder = 'scope="module"', path.read_text(), path.with_name("conftest.py")
    theirs = folder.read_text() if folder.exists() else ""
    named = set(re.findall(r"^def (\w+)", theirs, re.MULTILINE)) & set(re.findall(r"\w+", text))
    return shared in text or (shared in theirs and bool(named))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Schedule:
    """How tests are spread over workers."""
    config.option.loadscopereorder = False  # they come in the order in which they are to begin
    return Schedule(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks tests that talk to the object store."""
    if {"s3", "s3_endpoint"} & set(getattr(item, "fixturenames", ())):
        item.add_marker("s3")
    for marker in item.iter_markers("needs"):
        if unknown := set(marker.args) - needs.NEEDS.keys():
            raise pytest.UsageError(f"{item.nodeid}: tests/needs.py has no row {', '.join(unknown)}")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Does not even read the files that touch no need, where only the rest is run."""
    left_out = os.environ.get(needs.BARE) == needs.TOUCHING and collection_path.name.startswith("test_")
    return True if left_out and not needs.speaks_of_needs(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what touches no need where only the rest is run; has workers begin with what takes long."""
    if os.environ.get(needs.BARE) == needs.TOUCHING:
        left_out = [item for item in items if not needs.touches(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    if "PYTEST_XDIST_WORKER" in os.environ:
        ranks = {folder: rank for rank, folder in enumerate(LONG)}
        items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))


def pytest_collection_finish() -> None:
    """Leaves out of every later garbage collection what is there by now; tests collect often, for what they left."""
    gc.freeze()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users reach. Not below `tmp_path`: any pytest that starts closes the way there again."""
    with tempfile.TemporaryDirectory(prefix="public-") as name:
        Path(name).chmod(0o755)
        for above in Path(name).parents:
            if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & 0o001:
                above.chmod(above.stat().st_mode | 0o011)
        yield Path(name)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, process, descriptor or shared memory behind, or ends the S3 server of all."""
    with stays_serving(), leaks.check():
        yield


def _cpu_seconds() -> float:
    """What this process has used, and those of its programs that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose needs this machine lacks."""
    item.stash[BEGAN] = _cpu_seconds()
    for marker in item.iter_markers("needs"):
        needs.require(*marker.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps a test's cost, and what would bring a skipped one; a skip is a failure where all must run: CI=true."""
    report = yield
    if call.when == "teardown":
        now = _cpu_seconds()
        report.user_properties.append((CPU, now - item.stash.get(BEGAN, now)))
    if call.excinfo is not None and isinstance(call.excinfo.value, needs.Lacking):
        report.user_properties.append((COMMANDS, call.excinfo.value.commands))
    if report.skipped and os.environ.get("CI") == "true" and needs.BARE not in os.environ:
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI must run everything: {report.longrepr}"
    return report

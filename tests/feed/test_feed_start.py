"""Workers that cannot start, wherever and why ever: one error after a few attempts, which names the cause."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import feed_data
import pytest
from feed_data import flat
from feed_servers import Pair

from headrace.errors import WorkersLost
from headrace.feed import DataLoader
from headrace.feed.client import remote_pool
from headrace.feed.client.remote_pool import RemotePool
from headrace.feed.client.worker_pool import RECOVER_SECONDS, START_SECONDS
from headrace.feed.wire.endpoints import Endpoints
from headrace.feed.worker.executor_rules import RESTARTS, STARTS, WINDOW, RestartBudget

pytestmark = pytest.mark.usefixtures("without_torch")  # of the scripts

# A worker's end takes longer than three seconds here, so its restarts never add up to many in a minute.
SCRIPT = """
import atexit, json, multiprocessing, os, signal, sys, time
from pathlib import Path
from headrace import feed

FOLDER, METHOD = Path(sys.argv[1]), sys.argv[2]
INSIDE = multiprocessing.current_process().name != "MainProcess"
if INSIDE:
    atexit.register(time.sleep, float(sys.argv[3]))
    if (FOLDER / "main").exists():
        raise LookupError("no licence left")


class Rows:
    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

    def __setstate__(self, state):
        with (FOLDER / "starts").open("a") as starts:
            starts.write("x")
        self.__dict__.update(state)
        if self.kind == "raise":
            raise ValueError("the bucket is gone")
        if self.kind == "exit":
            os._exit(7)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "slow":
            time.sleep(4)


class Unpicklable(Rows):
    def __getstate__(self):
        raise LookupError("it holds a connection")


def init(number):
    (FOLDER / f"init-{number}").touch()
    sys.exit("init leaves")


if __name__ == "__main__":
    class Local(Rows):
        pass

    for kind in sys.argv[4:]:
        (FOLDER / "starts").write_text("")
        rows = {"local": Local, "unpicklable": Unpicklable}.get(kind, Rows)(kind)
        if kind == "main":
            (FOLDER / "main").touch()
        try:
            with feed.DataLoader(
                rows, 4, seed=1, num_workers=2, multiprocessing_context=METHOD, collate_fn=feed.stack_arrays,
                worker_init_fn=init if kind == "init" else None,
            ) as loader:
                told = "batches", [batch.tolist() for batch in loader]
        except Exception as error:
            told = type(error).__name__, str(error)
        print("TOLD", json.dumps([kind, *told, len((FOLDER / "starts").read_text())]), flush=True)
"""


def told_by(tmp_path: Path, method: str, seconds: float, *kinds: str) -> dict[str, tuple[str, str, int]]:
    """Runs the script; returns for every kind what it told: type, text, and how many workers unpickled the dataset."""
    script = tmp_path / "start.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path), method, str(seconds), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    lines = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert [line[0] for line in lines] == list(kinds), done.stderr
    return {kind: (name, text, starts) for kind, name, text, starts in lines}


@pytest.mark.promise(
    "feed-errors", "a worker that cannot start is one error with its own exception; a slow one is waited for"
)
def test_what_a_worker_cannot_take_is_told_by_the_first_one_however_long_its_end_takes(tmp_path: Path) -> None:
    told = told_by(tmp_path, "spawn", 3.2, "local", "raise", "init", "unpicklable")
    for name, text, starts in (told["local"], told_by(tmp_path, "forkserver", 3.2, "local")["local"]):
        assert (name, starts) == ("PipelineError", 0)
        assert "AttributeError: Can't get attribute 'Local'" in text
    name, text, starts = told["raise"]
    assert (name, starts) == ("PipelineError", 1)
    assert "ValueError: the bucket is gone" in text
    assert "in __setstate__" in text, "the worker's traceback"
    name, text, starts = told["init"]
    assert (name, starts) == ("PipelineError", 1)
    assert "SystemExit: init leaves" in text
    assert told["unpicklable"][:2] == ("FeedError", "cannot start a worker process: LookupError: it holds a connection")
    assert told["unpicklable"][2] == 0


@pytest.mark.promise(
    "feed-errors", "a worker that cannot start is one error with its own exception; a slow one is waited for"
)
@pytest.mark.parametrize(("method", "kinds"), [("spawn", ["kill", "main"]), ("forkserver", ["exit"])])
def test_workers_that_end_before_they_have_begun_are_tried_four_times(
    method: str, kinds: list[str], tmp_path: Path
) -> None:
    ends = {"exit": "exited with code 7", "kill": "killed by SIGKILL", "main": "exited with code 1"}
    advice = {"exit": "ends the process", "kill": "memory is short", "main": "see the traceback above"}
    for kind, (name, text, starts) in told_by(tmp_path, method, 0.0, *kinds).items():
        assert (name, starts) == ("WorkersLost", 0 if kind == "main" else STARTS), text
        assert text.startswith(f"{STARTS} worker processes ended before they had begun; the last one {ends[kind]}")
        assert advice[kind] in text


@pytest.mark.promise(
    "feed-errors", "a worker that cannot start is one error with its own exception; a slow one is waited for"
)
def test_a_worker_whose_start_takes_long_is_not_given_up(tmp_path: Path) -> None:
    name, batches, starts = told_by(tmp_path, "spawn", 0.0, "slow")["slow"]
    assert (name, batches) == ("batches", [[0, 1, 2, 3], [4, 5, 6, 7]])
    assert starts in (1, 2)


def test_workers_that_cannot_start_are_counted_however_slowly_they_end() -> None:
    budget, now = RestartBudget(), 0.0
    assert [budget.spend(now + 100 * count, begun=False) for count in range(STARTS)] == [True] * (STARTS - 1) + [False]
    assert budget.describe("workers") == f"{STARTS} workers ended before they had begun"
    budget = RestartBudget()
    for count in range(10 * STARTS):  # one that answers in between shows that workers can start
        assert budget.spend(now + 100 * count, begun=False)
        budget.begun()
    assert all(budget.spend(5e4 + 100 * count, begun=True) for count in range(10 * RESTARTS))
    budget = RestartBudget()
    assert [budget.spend(now, begun=True) for _ in range(RESTARTS + 1)] == [True] * RESTARTS + [False]
    assert budget.left(now + WINDOW + 1)


def test_a_receiver_that_cannot_start_is_an_error_after_four(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, start_receiver = [], remote_pool.start_receiver

    def start() -> remote_pool.ReceiverLink:
        begun.append(time.monotonic())
        return start_receiver()

    monkeypatch.setattr(remote_pool, "start_receiver", start)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        DataLoader(feed_data.noise(), 8, workers=pair.a.tcp, secret_file=pair.secret) as loader,
        pytest.raises(WorkersLost, match=r"4 receiver processes ended before they had begun; .* exited with code 1"),
    ):
        next(iter(loader))
    assert len(begun) == STARTS


# Daemonic processes


def load(answers: Any, loaders: list[dict[str, Any]]) -> None:
    for options in loaders:
        try:
            with DataLoader(feed_data.noise(), 8, seed=3, **options) as loader:
                answers.put([flat(batch) for batch in loader])
        except BaseException as error:  # noqa: BLE001 - told to the test
            answers.put(f"{type(error).__name__}: {error}")


def in_a_daemonic_process(loaders: list[dict[str, Any]]) -> list[Any]:
    """Returns what each of some loaders gave in a daemonic process: its batches, or an error in words."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=load, args=(answers, loaders), daemon=True)
    process.start()
    try:
        return [answers.get(timeout=90) for _ in loaders]
    finally:
        process.join(30)
        process.close()
        answers.close()
        answers.join_thread()


def test_a_daemonic_process_is_told_that_it_may_have_no_workers() -> None:
    methods, workers = ["fork", "spawn", "forkserver"], (2, "auto")
    loaders = [{"num_workers": number, "multiprocessing_context": method} for method in methods for number in workers]
    for told in in_a_daemonic_process(loaders):
        assert told.startswith("FeedError: this loader cannot start worker processes here: daemonic processes are not")
        assert "num_workers=0" in told
        assert "daemon=False" in told


def test_what_needs_no_worker_processes_works_in_a_daemonic_process(pair: Pair) -> None:
    with DataLoader(feed_data.noise(), 8, seed=3) as loader:
        expected = [flat(batch) for batch in loader]
    loaders = [{"num_workers": 0}, {"workers": pair.mixed, "secret_file": pair.secret}]
    assert in_a_daemonic_process(loaders) == [expected, expected]


@pytest.mark.promise("faults", "a data host that its job still starts is waited for; one that is lost is not")
def test_a_server_that_its_job_still_starts_is_waited_for_and_one_that_is_ready_or_lost_is_not(tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "feed.json"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)

    def write(state: str) -> None:
        host = {"host": "algo-2", "group": "data", "address": "unix:@nobody-listens", "executors": 1, "state": state}
        new = tmp_path / state
        new.write_text(json.dumps({"generation": 1, "secret_file": str(secret), "hosts": [host]}))
        new.replace(file)

    write("starting")
    pool = RemotePool(Endpoints(str(file)), "client", 0, 1)
    for now in (1.0, 100.0, 1_000.0):  # seconds: imports on a busy machine take what they take
        pool.maintain(now)
    write("ready")
    pool.maintain(2_000.0)
    pool.maintain(2_000.0 + START_SECONDS)
    with pytest.raises(WorkersLost, match="no data worker is left"):
        pool.maintain(2_001.0 + START_SECONDS)
    write("starting")
    pool.maintain(3_000.0)
    write("lost")
    pool.maintain(3_001.0)
    with pytest.raises(WorkersLost, match="no data worker is left"):
        pool.maintain(3_001.0 + RECOVER_SECONDS)

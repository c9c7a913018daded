"""One pool of feed servers for several jobs: as many bytes for each, and a job that stops reading holds up no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import array_data
import psutil
import pytest
from feed_servers import HERE, Server, ask, wait_until

from headrace.feed import DataLoader, stack_arrays
from headrace.feed.batch.slab import GRANULE
from headrace.feed.identifiers import PipelineNumber, RequestNumber
from headrace.feed.loader.supply import JOB_VARIABLE, job_of
from headrace.feed.wire import messages
from headrace.feed.worker.clients import ClientConnection, FairQueue, ServerRequest
from headrace.feed.worker.send_buffers import Staging
from headrace.feed.worker.work_queue import enter_plan

PIPELINE = PipelineNumber(1)


def client_of(job: str, rank: int = 0) -> ClientConnection:
    hello = messages.Hello(messages.VERSION, b"", b"", "c", rank, 2)
    return ClientConnection(Any, job, False, 0.0, messages.Challenge(2, b""), hello, job=job)  # type: ignore[arg-type]


def request_of(client: ClientConnection, number: int, step: int = 0, epoch: int = 0) -> ServerRequest:
    batch = messages.BatchRows(step, 0, 1, 0, 1, [0])
    message = messages.SliceRequest(RequestNumber(number), PIPELINE, epoch, 0, (batch,), whole=False)
    return ServerRequest(client, message, number)


def serve(queue: FairQueue, sizes: dict[str, int], turns: int) -> dict[str, int]:
    """Makes slices in the queue's order, two at a time. Returns how many bytes each job got."""
    made = dict.fromkeys(sizes, 0)
    at_work: list[ServerRequest] = []
    for _ in range(turns):
        while len(at_work) < 2 and (request := queue.first(())) is not None:
            queue.give_out(request)
            at_work.append(request)
        done = at_work.pop(0)
        made[done.client.job] += sizes[done.client.job]
        queue.ended(done, sizes[done.client.job])
    return made


def test_jobs_get_as_many_bytes_whatever_their_slices_and_epochs_are() -> None:
    queue, sizes = FairQueue(), {"small": 1000, "large": 50_000, "late": 7000}
    for place, name in enumerate(sizes):
        client = client_of(name)
        for number in range(20_000):
            queue.push(request_of(client, 100_000 * place + number, number, epoch=5 * place))
    made = serve(queue, sizes, 4000)
    assert max(made.values()) - min(made.values()) <= 100_000 + 0.02 * max(made.values()), made
    queue.take_out(lambda request: request.client.job == "late")
    newcomer = client_of("new")
    for number in range(5000):
        queue.push(request_of(newcomer, 900_000 + number))
    again = serve(queue, sizes | {"new": 1000}, 1000)
    assert again["new"] <= 1.2 * again["small"] + 2000, "it begins level with the others, and takes nothing back"
    assert again["new"] >= 0.8 * again["small"]


def test_inside_a_job_the_smallest_epoch_and_step_is_first() -> None:
    queue, client = FairQueue(), client_of("one")
    for number, (epoch, step) in enumerate([(1, 0), (0, 7), (0, 3), (1, 4)]):
        queue.push(request_of(client, number, step, epoch))
    first = queue.first(())
    assert first is not None
    queue.pass_over(first)
    second = queue.first(())
    assert second is not None
    assert (first.arrival, second.arrival) == (2, 1)
    queue.restore()
    assert queue.first(()) is first
    assert queue.first({"one"}) is None
    assert len(queue.take_out(lambda request: request.message.epoch == 1)) == 2
    assert len(queue) == 2


def test_memory_is_divided_among_jobs_and_none_holds_all_of_it() -> None:
    staging = Staging(6 * GRANULE, lambda number: None)
    table = messages.SliceRequest(
        RequestNumber(1), PIPELINE, 0, 0, (messages.BatchRows(0, 0, 1, 0, 1, [0]),), whole=True
    )
    staging._batch_bytes[PIPELINE] = GRANULE
    alone = [staging.reserve(table, "frozen", 1) for _ in range(8)]
    assert [number is not None for number in alone] == [True] * 6 + [False] * 2
    others = [staging.reserve(table, "other", 2) for _ in range(4)]
    assert [number is not None for number in others] == [True, True, False, False], "a third of the memory, always"
    assert staging.reserve(table, "frozen", 2) is None
    assert (staging.held("frozen"), staging.held("other")) == (6 * GRANULE, 2 * GRANULE)
    staging._batch_bytes[PIPELINE] = 100 * GRANULE
    assert staging.reserve(table, "third", 3) is not None, "who holds nothing gets one slab"
    staging._pool.close()


def test_only_ranks_of_one_job_must_have_the_same_plan() -> None:
    queue = FairQueue()

    def conflict(job: str, rank: int, plan: str) -> str:
        client = client_of(job, rank)
        queue.enter(client, job)
        opening = messages.Open(PIPELINE, "m:f", {}, "", "", True, "train", plan)
        return enter_plan(client, opening, queue.clients[job])

    assert not conflict("one", 0, "a")
    assert not conflict("two", 1, "b")
    assert not conflict("one", 0, "b"), "the same rank has made another loader of this name"
    assert not conflict("one", 1, ""), "it does not say"
    assert "rank 2 and rank 0 have different plans" in conflict("one", 2, "c")
    assert not conflict("two", 0, "b")


def test_ranks_find_the_same_name_of_their_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (JOB_VARIABLE, "MASTER_ADDR", "MASTER_PORT", "RANK", "SM_MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert str(os.getpid()) in job_of("")
    assert job_of("plan") == "", "ranks that do not say where they meet are one job"
    monkeypatch.setenv("MASTER_ADDR", "h1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert job_of("plan") == "h1:29500"
    monkeypatch.setenv("SM_MASTER_PORT", "29500")
    assert str(os.getpid()) in job_of(""), "a platform tells every program, also those that have no ranks"
    monkeypatch.setenv("RANK", "0")
    assert job_of("plan") == "h1:29500"
    monkeypatch.setenv(JOB_VARIABLE, "lr-0.1")
    assert job_of("plan") == "lr-0.1"


def job_bytes(server: Server) -> dict[str, int]:
    return {job.name: job.bytes for job in ask(server).jobs}


@pytest.mark.promise("feed-pool", "jobs that share servers get equal bytes; a frozen one delays no other")
@pytest.mark.usefixtures("without_torch")
def test_two_jobs_of_a_busy_server_get_as_many_bytes(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_server()
    loaders = []
    for job, epoch, prefetch in (("eager", 0, 16), ("late", 9, 4)):
        monkeypatch.setenv(JOB_VARIABLE, job)
        loader = DataLoader(
            array_data.pictures(100_000, delay=0.002), batch_size=4, collate_fn=stack_arrays, seed=1,
            shuffle=True, verify=0, prefetch_factor=prefetch,
            workers=server.tcp, secret_file=str(server.secret),
        )  # fmt: skip
        loader.set_epoch(epoch)
        loaders.append(loader)
    stop = threading.Event()

    def train(loader: DataLoader) -> None:
        for _ in loader:
            if stop.is_set():
                return

    threads = [threading.Thread(target=train, args=(loader,)) for loader in loaders]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(job_bytes(server)) == 2 and min(job_bytes(server).values()) > 0, "both are served")
        before = job_bytes(server)
        wait_until(lambda: sum(job_bytes(server).values()) > sum(before.values()) + 100_000, "work for both", 30.0)
        after = job_bytes(server)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for loader in loaders:
            loader.close()
    made = {name: after[name] - before[name] for name in after}
    assert 0.9 < made["eager"] / made["late"] < 1 / 0.9, made
    wait_until(lambda: not ask(server).jobs, "both are forgotten")


TRAINER = """
import sys
import array_data
from headrace.feed import DataLoader, stack_arrays
with DataLoader(array_data.pictures(96, shape=[20_000, 4]), batch_size=4, collate_fn=stack_arrays,
                seed=1, shuffle=True, prefetch_factor=8, verify=0,
                memory=16 << 20, workers=sys.argv[1], secret_file=sys.argv[2]) as loader:
    for batch in loader:
        print(*batch[1].tolist(), flush=True)
        if sys.argv[3] == "held":
            sys.stdin.readline()
"""


def trainer(server: Server, job: str, how: str, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRAINER, server.tcp, str(server.secret), how]
    environment = os.environ | {JOB_VARIABLE: job, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{HERE}"}
    with log.open("w") as out:
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=out, text=True)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    own = psutil.Process(process.pid)
    return [own, *own.children(recursive=True)]


@pytest.mark.promise("feed-pool", "jobs that share servers get equal bytes; a frozen one delays no other")
@pytest.mark.usefixtures("without_torch")
def test_a_job_that_is_frozen_holds_up_no_other_and_loses_nothing(
    own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = own_server(memory=6 << 20)
    logs = {job: tmp_path / job for job in ("frozen", "quick")}
    frozen = trainer(server, "frozen", "held", logs["frozen"])
    stopped: list[psutil.Process] = []
    try:
        wait_until(lambda: logs["frozen"].read_text().count("\n") == 1, "its first batch", 30.0)
        stopped = family(frozen)
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        quick = trainer(server, "quick", "at once", logs["quick"])
        assert quick.wait(60) == 0
        assert quick.stdin is not None
        quick.stdin.close()
        assert {job.name for job in ask(server).jobs} == {"frozen"}, f"after {time.monotonic() - begun:.1f} s"
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        stopped = []
        frozen.communicate("\n" * 200, timeout=60)
        assert frozen.returncode == 0
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        frozen.kill()
        frozen.communicate()
    for log in logs.values():
        assert sorted(map(int, log.read_text().split())) == list(range(96))

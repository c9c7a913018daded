"""examples/grpc-feed: a job as SageMaker's users write it, with its own names, ports and shutdown."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from effort import SOAK

from headrace import engines
from headrace.job import load_job
from headrace.runs import Status
from headrace.runs.events import HostStarted, ProgramExited
from needs import require
from objectstore import free_port
from observer import Observer
from patience import allowed

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CODE = EXAMPLES / "grpc-feed" / "code"
MODULES = ("cluster", "dataset_feed", "images", "shutdown")
# The training hosts share the cores of this machine: with a thread for each core, both would wait for each other's.
ONE_THREAD = "environment.OMP_NUM_THREADS=1"


def prepare() -> None:
    spec = importlib.util.spec_from_file_location("digits_prepare", EXAMPLES / "digits" / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(EXAMPLES / "digits" / "data")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    require("namespaces")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    prepare()
    handles = []

    def go(*overrides: str):
        handle = engines.start(load_job(EXAMPLES / "grpc-feed" / "grpc-feed.yaml", [ONE_THREAD, *overrides]))
        handles.append(handle)
        return handle

    yield go
    for handle in handles:
        if handle.exit_code is None:  # the test has failed already
            handle.stop(now=True)
            handle.wait(20)


def said(handle, host: str) -> str:
    return "\n".join(line.text for line in handle.logs() if line.stream.host == host)


if SOAK:  # in every run: its parts, below

    @pytest.mark.torch
    @pytest.mark.slow
    @pytest.mark.namespaces
    @pytest.mark.timeout(900)
    def test_it_trains_on_two_data_hosts_and_two_training_hosts_and_every_host_ends_by_itself(start) -> None:
        observer = Observer("10.")
        handle = start("hyperparameters.epochs=4")
        assert handle.wait(allowed(200)) is Status.COMPLETED, "\n".join(line.text for line in handle.logs())
        observer.assert_nothing_left(handle.id, handle.paths.root, within=5.0)
        exits = {each.host: each for each in handle.run.events() if isinstance(each, ProgramExited)}
        assert {host: (each.exit_code, each.stopped) for host, each in exits.items()} == dict.fromkeys(
            ("algo-1", "algo-2", "algo-3", "algo-4"), (0, False)
        )
        for host in ("algo-1", "algo-2"):
            assert f"{host} serves on port 6000" in said(handle, host)
            assert f"{host} ends: training is complete" in said(handle, host)
        result = json.loads((handle.paths.host("algo-3") / "output" / "data" / "result.json").read_text())
        assert result["accuracy"] > 0.85
        assert (handle.paths.host("algo-3") / "model" / "model.pt").stat().st_size > 1000


if SOAK:  # the fault table kills trainers in every run

    @pytest.mark.torch
    @pytest.mark.slow
    @pytest.mark.namespaces
    @pytest.mark.timeout(900)
    def test_a_trainer_that_is_killed_fails_the_job(start) -> None:
        handle = start("hyperparameters.epochs=1000")
        began = time.monotonic()
        while "epoch 1/1000" not in said(handle, "algo-4"):
            assert time.monotonic() - began < allowed(120)
            assert handle.exit_code is None
            time.sleep(0.1)
        agent = next(
            each.pid for each in handle.run.events() if isinstance(each, HostStarted) and each.host == "algo-4"
        )
        below = psutil.Process(agent).children(recursive=True)
        next(each for each in below if any("train_dnn.py" in word for word in each.cmdline())).kill()
        assert handle.wait(allowed(30)) is Status.FAILED
        assert (handle.cause.host, handle.cause.exit_code) == ("algo-4", 128 + 9)
        assert "train_dnn.py on algo-4 ended with -9" in said(handle, "algo-4")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The example's modules."""
    monkeypatch.syspath_prepend(str(CODE))
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name)


def test_strangers_do_not_end_a_data_host(code) -> None:
    shutdown, port = code["shutdown"], free_port()

    async def play() -> str:
        waiting = asyncio.ensure_future(shutdown.wait_for_request(port, b"token"))
        await asyncio.sleep(0)  # it listens once the task has run
        loop = asyncio.get_running_loop()

        def stranger(send: bytes) -> bytes:
            deadline = time.monotonic() + 5
            while True:
                try:
                    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
            with connection:
                connection.recv(100)
                connection.sendall(send)
                connection.shutdown(socket.SHUT_WR)
                return connection.recv(100)

        for send in (b"", b"\n", b"GET / HTTP/1.0\r\n\r\n", b"0" * 64 + b" training is complete\n", b"x" * 10_000):
            assert await loop.run_in_executor(None, stranger, send) == b""
            assert not waiting.done()
        with pytest.raises(ConnectionError):
            await loop.run_in_executor(None, shutdown.ask, "127.0.0.1", port, b"another token", "end", 5.0)
        assert not waiting.done()
        await loop.run_in_executor(None, shutdown.ask, "127.0.0.1", port, b"token", "training is complete", 5.0)
        return await asyncio.wait_for(waiting, 5)

    assert asyncio.run(play()) == "training is complete"


def test_a_request_to_end_cannot_be_replayed(code) -> None:
    shutdown = code["shutdown"]
    assert shutdown.seal(b"token", "1" * 32, "end") != shutdown.seal(b"token", "2" * 32, "end")


@pytest.fixture
def served(code) -> Iterator[int]:
    """A data host whose batch 13 cannot be made; its port."""
    import grpc

    feed, port = code["dataset_feed"], free_port()
    ready, end = threading.Event(), threading.Event()

    async def make_batch(request, number: int) -> bytes:
        if number == 13:
            raise ValueError("unreadable image")
        return b"%d" % number

    async def serve() -> None:
        server = grpc.aio.server(options=feed.OPTIONS)
        server.add_generic_rpc_handlers((feed.service(b"token", make_batch),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        ready.set()
        while not end.is_set():
            await asyncio.sleep(0.02)
        await server.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield port
    end.set()
    thread.join(10)


@pytest.mark.promise("sagemaker-differences", "absent here: streams beyond the server's threads starve")
def test_every_stream_is_served_to_its_end_however_many_there_are(code, served: int) -> None:
    feed = code["dataset_feed"]
    streams = [
        feed.get_batches("127.0.0.1", served, b"token", feed.Request(1, 2, 3, tuple(range(100, 150))), 30.0)
        for _ in range(12)
    ]
    received = [[next(stream)] for stream in streams]  # all are open before any is read on
    for stream, messages in zip(streams, received, strict=True):
        messages.extend(stream)
        assert messages == [b"%d" % number for number in range(100, 150)]


def test_what_a_worker_says_reaches_the_trainer_and_strangers_get_nothing(code, served: int) -> None:
    import grpc

    feed = code["dataset_feed"]
    request = feed.Request(1, 2, 3, (12, 13, 14))
    stream = feed.get_batches("127.0.0.1", served, b"token", request, 30.0)
    assert next(stream) == b"12"
    with pytest.raises(grpc.RpcError) as wrong:
        next(stream)
    assert wrong.value.details() == "batch 13: ValueError: unreadable image"
    with pytest.raises(grpc.RpcError) as refused:
        next(feed.get_batches("127.0.0.1", served, b"other", request, 30.0))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_batch_follows_from_its_address_and_an_epoch_holds_every_digit_once(code, monkeypatch) -> None:
    import numpy as np

    prepare()
    monkeypatch.setenv("SM_CHANNEL_TRAINING", os.fspath(EXAMPLES / "digits" / "data"))
    digits = code["images"].Digits("train")
    count = -(-len(digits) // 64)
    batches = [digits.batch(7, 3, 64, number) for number in range(count)]
    again = digits.batch(7, 3, 64, 5)
    assert np.array_equal(batches[5][0], again[0])
    assert not np.array_equal(digits.batch(7, 4, 64, 5)[0], again[0])
    labels = np.concatenate([labels for _, labels in batches])
    assert np.array_equal(np.sort(labels), np.sort(digits.labels))
    feed = code["dataset_feed"]
    images, answers = feed.decode_batch(feed.encode_batch(*again))
    assert images.dtype == np.uint8
    assert np.array_equal(images, again[0])
    assert np.array_equal(answers, again[1])

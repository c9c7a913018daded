"""The server of the gRPC stream: ``grpc_server SIZE QUEUE``. Makes each batch by a memcpy, as the others do."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from bench.feed.contenders.dataset_feed import METHOD, OPTIONS, Dummy, Example

from headrace.child_python import die_with_parent

QUEUED = 32  # as in SageMaker's example


def batches(size: int) -> Iterator[tuple[bytes, bytes]]:
    """Makes batches without end; `tobytes` is the memcpy that fills a fresh one."""
    source, labels = np.ones(size, np.uint8), np.zeros(128, np.int8)
    while True:
        yield source.tobytes(), labels.tobytes()


def fill(size: int, queue: Any, parent: int) -> None:
    """Puts batches into a queue, as a process of its own."""
    die_with_parent(parent)
    for batch in batches(size):
        queue.put(batch)


def queued(size: int) -> Iterator[tuple[bytes, bytes]]:
    """Makes batches in a process of their own."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue(QUEUED if size < 1 << 20 else 4)
    context.Process(target=fill, args=(size, queue, os.getpid()), daemon=True).start()
    while True:
        yield queue.get()


def main() -> None:
    """Entry point."""
    die_with_parent(os.getppid())
    size, through_queue = (int(argument) for argument in sys.argv[1:])
    source = queued(size) if through_queue else batches(size)
    if through_queue:
        next(source)  # forks before grpc has threads

    def get_examples(_request: Any, _context: Any) -> Iterator[Any]:
        for image, label in source:
            yield Example(image=image, label=label)

    _, _, method = METHOD.rpartition("/")
    service = METHOD.strip("/").removesuffix(f"/{method}")
    handler = grpc.unary_stream_rpc_method_handler(
        get_examples, request_deserializer=Dummy.FromString, response_serializer=Example.SerializeToString
    )
    server = grpc.server(futures.ThreadPoolExecutor(2), options=OPTIONS)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

"""What a data host runs: prepares batches in processes and serves them, until training has ended."""

from __future__ import annotations

import argparse
import asyncio
import functools
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor

import cluster
import grpc
import shutdown
from dataset_feed import OPTIONS, Request, encode_batch, service
from images import Digits

_digits = functools.cache(Digits)  # one in every worker process


def make_batch(request: Request, number: int) -> bytes:
    """Runs in a worker process."""
    return encode_batch(*_digits("train").batch(request.seed, request.epoch, request.batch_size, number))


async def serve(workers: int) -> str:
    """Serves until a host of the job asks it to end. Returns the reason."""
    loop = asyncio.get_running_loop()
    processes = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    # A worker must be ready, and the files readable, before clients may connect.
    await loop.run_in_executor(processes, make_batch, Request(0, 0, 1, (0,)), 0)

    async def in_worker(request: Request, number: int) -> bytes:
        return await loop.run_in_executor(processes, make_batch, request, number)

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((service(cluster.token(), in_worker),))
    server.add_insecure_port(f"0.0.0.0:{cluster.FEED_PORT}")
    await server.start()
    print(f"{cluster.current_host()} serves on port {cluster.FEED_PORT} with {workers} workers", flush=True)
    request = asyncio.ensure_future(shutdown.wait_for_request(cluster.SHUTDOWN_PORT, cluster.token()))
    loop.add_signal_handler(signal.SIGTERM, request.cancel)
    try:
        return await request
    except asyncio.CancelledError:
        return "SIGTERM"
    finally:
        await server.stop(grace=2.0)
        processes.shutdown(cancel_futures=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_data_workers", type=int, default=1)
    options, _ = parser.parse_known_args()
    print(f"{cluster.current_host()} ends: {asyncio.run(serve(options.num_data_workers))}", flush=True)


if __name__ == "__main__":
    main()

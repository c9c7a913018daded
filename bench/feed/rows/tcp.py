"""TCP on loopback, one worker to one client, 19 MB batches of one tensor.

The raw socket loop does the same work (takes fresh batches from the same dataset, sends, receives into reused buffers)
with one process on either side. *In place* fills buffers of its own instead; *send only* fills nothing and is the limit
of the socket itself. headrace has four processes there: executor, feed server, receiver, trainer.
"""

from __future__ import annotations

from bench.feed.contenders.grpc_stream import GrpcStream
from bench.feed.contenders.headrace_loader import HeadraceTcp
from bench.feed.contenders.limits import RawSocket
from bench.feed.data import BATCH_IMAGES, IMAGE_BYTES, shaped
from bench.feed.figures import Figure, Records, gigabytes_per_second, rate
from bench.feed.measure import Bench
from bench.feed.records import Record
from bench.feed.settings import Settings

TITLE = "TCP, fresh 19 MB batches, 1 worker to 1 client"


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    size = IMAGE_BYTES * bench.effort.scaled(BATCH_IMAGES)
    bench.interleave(
        [
            RawSocket(size),
            HeadraceTcp(shaped(shape="one tensor", size=size), 1, batch_size=None),
            GrpcStream(size, **settings.of("grpc stream", bench.row)),
            RawSocket(size, "in place"),
            RawSocket(size, "send only"),
        ],
        size,
    )


def _all(record: Record) -> float:
    return record.cpu_per_gb


def _trainer(record: Record) -> float:
    return record.trainer_cpu_per_gb


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    raw, filled, limit, grpc = "raw socket", "raw socket, in place", "raw socket, send only", "grpc stream"
    found = [
        records.ratio("headrace / raw socket loop, throughput", "headrace", raw, rate, target=0.9),
        records.ratio("headrace / raw socket filled in place, throughput", "headrace", filled, rate),
        records.ratio("headrace / raw socket, send only, throughput", "headrace", limit, rate),
        records.ratio("headrace / gRPC stream, throughput", "headrace", grpc, rate),
        records.ratio(
            "headrace / gRPC stream, CPU s/GB, both sides", "headrace", grpc, _all, target=0.25, better="less"
        ),
        records.ratio(
            "headrace / raw socket loop, CPU s/GB, trainer's side",
            "headrace",
            raw,
            _trainer,
            target=1.25,
            better="less",
        ),
    ]
    for name in ("headrace", raw, filled, limit, grpc):
        found.append(records.value(name, name, gigabytes_per_second, " GB/s"))
        found.append(records.value(f"{name}, CPU, both sides", name, _all, " s/GB", better="less"))
        found.append(records.value(f"{name}, CPU, trainer's side", name, _trainer, " s/GB", better="less"))
    return found

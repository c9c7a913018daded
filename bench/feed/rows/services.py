"""headrace over TCP beside two data services of other frameworks, on the work of the TCP row.

tf.data service runs uncompressed with one worker; Ray Data runs with one CPU on a node with an object store of its own.
Both keep background processes and threads that work while the others are measured, which is why they have a row of
their own.
"""

from __future__ import annotations

from bench.feed.contenders.headrace_loader import HeadraceTcp
from bench.feed.contenders.ray_data import RayData
from bench.feed.contenders.tf_service import TfService
from bench.feed.data import BATCH_IMAGES, IMAGE_BYTES, shaped
from bench.feed.figures import Figure, Records, gigabytes_per_second, rate
from bench.feed.measure import Bench
from bench.feed.settings import Settings

TITLE = "TCP, 19 MB, 1 worker to 1 client, beside tf.data service and Ray Data"


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    size = IMAGE_BYTES * bench.effort.scaled(BATCH_IMAGES)
    for peer in (
        TfService(size, **settings.of("tf.data service", bench.row)),
        RayData(size, **settings.of("Ray Data", bench.row)),
    ):
        ours = HeadraceTcp(shaped(shape="one tensor", size=size), 1, batch_size=None)
        bench.interleave([peer, ours], size, {f"beside {peer.name}": None})


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    found = []
    targets = {"tf.data service": 1.3, "Ray Data": None}
    for peer in ("tf.data service", "Ray Data"):
        variant = f"beside {peer}"
        found += [
            records.ratio(
                f"headrace / {peer}, throughput", "headrace", peer, rate, variant=variant, target=targets[peer]
            ),
            records.ratio(
                f"headrace / {peer}, CPU s/GB, both sides",
                "headrace",
                peer,
                lambda record: record.cpu_per_gb,
                variant=variant,
                better="less",
            ),
            records.value(peer, peer, gigabytes_per_second, " GB/s", variant=variant),
        ]
    return found

"""Ray Data between two nodes of a local cluster: blocks are made on one, iterated in the trainer on the other.

Both raylets run on this machine with object stores of their own, so blocks cross by Ray's object transfer over TCP, as
between hosts. A block is one batch.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from bench.feed.measure import Contender

BLOCKS = 400  # of an execution; when it ends, the next begins
STORE_BYTES = 1 << 30


class RayData(Contender):
    """One CPU on the data node.

    Args:
        size: bytes of a batch.
        options: `prefetch_batches`.
    """

    name = "Ray Data"

    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(**options)
        self._size = size
        self._cluster: Any = None

    def open(self) -> Iterator[Any]:
        os.environ["RAY_DEDUP_LOGS"] = "0"
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray
        from ray.cluster_utils import Cluster

        head = {
            "num_cpus": 0,
            "node_ip_address": "127.0.0.2",
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        }
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._cluster.add_node(
            num_cpus=1, node_ip_address="127.0.0.3", resources={"data": 1}, object_store_memory=STORE_BYTES
        )
        ray.init(address=self._cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        source = np.ones((1, self._size), np.uint8)

        def make(_rows: dict[str, Any]) -> dict[str, Any]:
            return {"batch": source.copy()}

        dataset = ray.data.range(BLOCKS, override_num_blocks=BLOCKS)
        dataset = dataset.map_batches(make, batch_size=1, num_cpus=1, resources={"data": 0.001})
        self._batches = self._executions(dataset)
        return self._batches

    def _executions(self, dataset: Any) -> Generator[Any, None, None]:
        while True:
            yield from dataset.iter_batches(batch_size=1, batch_format="numpy", **self.settings)

    def close(self) -> None:
        import ray

        if hasattr(self, "_batches"):
            self._batches.close()
            for thread in threading.enumerate():  # they end the process if they find Ray shut down
                if thread.name.startswith(("StreamingExecutor", "iter_threaded")):
                    thread.join(10)
        ray.shutdown()
        if self._cluster is not None:
            self._cluster.shutdown()

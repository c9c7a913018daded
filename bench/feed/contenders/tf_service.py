"""tf.data service: dispatcher and worker as processes, uncompressed, dynamic sharding; the client in the trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from bench.feed.measure import Contender
from bench.feed.servers import Program


class TfService(Contender):
    """One worker to one client.

    Args:
        size: bytes of a batch.
        options: `max_outstanding_requests`.
    """

    name = "tf.data service"

    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(**options)
        self._size = size
        self._programs: list[Program] = []

    def open(self) -> Iterator[Any]:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf

        self._programs.append(Program("tf_server", "dispatcher"))
        self._programs.append(Program("tf_server", "worker", str(self._programs[0].port)))
        source = tf.ones(self._size, tf.uint8)
        dataset = tf.data.Dataset.range(1 << 60)
        dataset = dataset.map(lambda _index: tf.raw_ops.DeepCopy(x=source))  # the memcpy that fills a fresh batch
        service = tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            f"grpc://127.0.0.1:{self._programs[0].port}",
            compression=None,
            **self.settings,
        )
        self._batches = iter(dataset.apply(service))
        return self._batches

    def close(self) -> None:
        self.__dict__.pop("_batches", None)
        for program in reversed(self._programs):
            program.stop()

"""A gRPC server stream of protobuf messages with two bytes fields: the feed that SageMaker's PyTorch example builds.

Written for this benchmark after that example's shape: `rpc get_examples(Dummy) returns (stream Example)`, with
`message Example { bytes image = 1; bytes label = 2; }`, arrays to and from bytes with `tobytes` and `frombuffer`. The
example puts a queue between loading and serving (`queue`, a setting of the sweep) and a second DataLoader in the
trainer, which is left out here in the peer's favour. Message size is unlimited; one stream on one channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from bench.feed.contenders.dataset_feed import METHOD, OPTIONS, Dummy, Example
from bench.feed.measure import Contender
from bench.feed.servers import Program


class GrpcStream(Contender):
    """One server process, one stream.

    Args:
        size: bytes of a batch.
        options: `queue`: whether loading is a process of its own with a queue, as in the example.
    """

    name = "grpc stream"

    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(**options)
        self._size = size

    def open(self) -> Iterator[Any]:
        self._program = Program("grpc_server", str(self._size), str(int(self.settings["queue"])))
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self._program.port}", options=OPTIONS)
        get_examples = self._channel.unary_stream(
            METHOD, request_serializer=Dummy.SerializeToString, response_deserializer=Example.FromString
        )
        self._call = get_examples(Dummy())
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        for example in self._call:
            labels = np.frombuffer(example.label, np.int8)
            yield np.frombuffer(example.image, np.uint8), labels

    def close(self) -> None:
        if hasattr(self, "_call"):
            self._call.cancel()
            self._channel.close()
        if hasattr(self, "_program"):
            self._program.stop()

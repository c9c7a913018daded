"""The gRPC service between the groups: what travels, and how a call is made.

One method, ``/feed.DatasetFeed/get_batches``: a request names batches, the answer is the stream of these batches in
that order, and it ends after the last one. What a batch holds follows from (seed, epoch, number) alone, so every data
host can make every batch, and one that was not received is asked for again, anywhere. So no connection matters.

Messages are bytes: the request is JSON, a batch is two arrays in NumPy's own file format, with shape and dtype.
"""

from __future__ import annotations

import hmac
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass

import grpc
import numpy as np

SERVICE = "feed.DatasetFeed"
METHOD = "get_batches"
SIZE_LIMIT = 256 << 20
OPTIONS = [("grpc.max_receive_message_length", SIZE_LIMIT), ("grpc.max_send_message_length", SIZE_LIMIT)]
AUTHORIZATION = "authorization"


@dataclass(frozen=True)
class Request:
    """Which batches are wanted.

    Attributes:
        seed, epoch: with a batch's number, what it holds follows from these.
        batch_size: rows of a batch; the last one of an epoch may have fewer.
        numbers: the batches, in the order in which they are wanted.
    """

    seed: int
    epoch: int
    batch_size: int
    numbers: tuple[int, ...]

    def encode(self) -> bytes:
        """Returns the message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, message: bytes) -> Request:
        """Reads the message. Raises ValueError, TypeError or KeyError."""
        fields = json.loads(message)
        return cls(int(fields["seed"]), int(fields["epoch"]), int(fields["batch_size"]), tuple(fields["numbers"]))


def encode_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Returns the message of a batch."""
    buffer = io.BytesIO()
    np.save(buffer, images, allow_pickle=False)
    np.save(buffer, labels, allow_pickle=False)
    return buffer.getvalue()


def decode_batch(message: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Reads a batch: images (n, height, width) and labels (n,)."""
    buffer = io.BytesIO(message)
    return np.load(buffer, allow_pickle=False), np.load(buffer, allow_pickle=False)


def proof(token: bytes) -> str:
    """What shows that a caller belongs to the job."""
    return hmac.new(token, SERVICE.encode(), "sha256").hexdigest()


def service(token: bytes, make_batch: Callable[[Request, int], Awaitable[bytes]]) -> grpc.GenericRpcHandler:
    """Returns the service.

    Args:
        token: see `proof`.
        make_batch: returns the message of one batch of a request.
    """

    async def get_batches(message: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        given = dict(context.invocation_metadata() or ()).get(AUTHORIZATION, "")
        if not hmac.compare_digest(str(given), proof(token)):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not of this job")
        request = Request.decode(message)
        for number in request.numbers:
            try:
                batch = await make_batch(request, number)
            except Exception as error:  # noqa: BLE001  (the trainer gets the error, whatever it is)
                await context.abort(grpc.StatusCode.INTERNAL, f"batch {number}: {type(error).__name__}: {error}")
            yield batch

    method = grpc.unary_stream_rpc_method_handler(get_batches)
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})


def get_batches(host: str, port: int, token: bytes, request: Request, seconds: float) -> Iterator[bytes]:
    """Yields the batches of a request.

    Args:
        host, port: a data host.
        token: see `proof`.
        request: what is wanted.
        seconds: how long all of it may take, the wait for a host that is not there yet included.

    Raises:
        grpc.RpcError: the host is gone, or could not make a batch; its details say why.
    """
    with grpc.insecure_channel(f"{host}:{port}", options=OPTIONS) as channel:
        call = channel.unary_stream(f"/{SERVICE}/{METHOD}")
        yield from call(
            request.encode(), metadata=[(AUTHORIZATION, proof(token))], timeout=seconds, wait_for_ready=True
        )

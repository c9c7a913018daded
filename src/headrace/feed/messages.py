"""What travels between a client and those who serve it: small typed messages, msgpack, no code.

The same messages are spoken on every leg: client to local executor, client to the feed server of its own host, client
to receiver process, receiver to remote feed server, feed server to executor. Bulk bytes are never in a message: they
are in a slab, whose descriptor is passed along (Unix socket), or follow the message as the frame's payload (TCP).

    Challenge, Hello, Welcome, Refused                  opening of a connection to a feed server (see `auth`)
    Dial, Down                                          client and receiver: connect to a host; it is gone
    Open -> Opened | OpenFailed                         a pipeline, by name
    SlabOffer (with a descriptor), SlabDrop             a slab of the client that results may be written to
    Ask -> Done | Unstackable | Failed | Lost | Cancelled, and Cancel     a slice; one answer to every Ask
    Ping -> Pong                                        client to feed server: are you there?
    Fork -> Forked, Exited                              feed server and its zygote
"""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = 1


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Challenge(_Message, frozen=True):
    """First word of a feed server. `nonce`: 32 random bytes."""

    version: int
    nonce: bytes


class Hello(_Message, frozen=True):
    """A client's answer. `plan` is its plan fingerprint, equal on all ranks; `loader` its name."""

    version: int
    nonce: bytes
    mac: bytes
    client: str
    rank: int = 0
    world_size: int = 1


class Welcome(_Message, frozen=True):
    """The server has accepted; `mac` proves that it holds the secret too."""

    mac: bytes
    host: str
    executors: int


class Refused(_Message, frozen=True):
    """The server does not accept; the connection is closed after it."""

    reason: str


class Dial(_Message, frozen=True):
    """Client to receiver: connect the frame's route to `address` (``tcp://ip:port``)."""

    address: str
    secret: bytes
    client: str
    rank: int = 0
    world_size: int = 1


class Down(_Message, frozen=True):
    """Receiver to client: the frame's route has no connection (any more). `refused`: the server will not have us."""

    reason: str
    refused: bool = False


class Open(_Message, frozen=True):
    """Open pipeline number `pipeline` of this connection.

    Attributes:
        factory: ``module:callable``, marked with `feed.pipeline`; empty when the executor was given the object itself.
        arguments: plain keyword arguments.
        collate: ``module:callable`` or empty for torch's `default_collate`.
        init: ``module:callable`` of `worker_init_fn`, or empty.
        batched: False for `batch_size=None`.
        plan: plan fingerprint; must be equal for all ranks that use this `loader` of the job.
        loader: name of the loader.
    """

    pipeline: int
    factory: str
    arguments: dict[str, Any]
    collate: str
    init: str
    batched: bool
    loader: str = ""
    plan: str = ""


class Opened(_Message, frozen=True):
    """The pipeline is built. `length` of its dataset, `whole`: batches are always made whole; numerics fingerprint."""

    pipeline: int
    length: int
    whole: bool
    numerics: dict[str, str]


class RemoteError(msgspec.Struct, frozen=True, array_like=True):
    """An exception of the user's code. `kind` is ``module:qualname`` of its type."""

    kind: str
    message: str
    traceback: str


class OpenFailed(_Message, frozen=True):
    """The pipeline cannot be built here."""

    pipeline: int
    error: RemoteError


class SlabOffer(_Message, frozen=True):
    """One descriptor comes with this message: a memfd of `size` bytes."""

    slab: int
    size: int


class SlabDrop(_Message, frozen=True):
    """The slab will not be used any more; unmap it."""

    slab: int


class Ask(_Message, frozen=True):
    """Make rows first..last-1 of a batch.

    Attributes:
        request: number that the answer repeats.
        pipeline: number given in `Open`.
        epoch, step, seed: address of the batch, and the seed of its random numbers.
        position: plan position of the batch's first row.
        rows: rows of the whole batch.
        first, last: the part that is asked for.
        keys: description of the list of keys of this part, as in `tree`.
        whole: collate the whole batch with the collate function, do not write rows.
        slab: slab to write to, 0 for none.
        layout: encoded layout of the batch, empty when it is not known yet.
        key_bytes: block that belongs to `keys`; empty when they are plain values, as most are.
    """

    request: int
    pipeline: int
    epoch: int
    step: int
    seed: int
    position: int
    rows: int
    first: int
    last: int
    keys: list[Any]
    whole: bool
    slab: int = 0
    layout: bytes = b""
    key_bytes: bytes = b""


class Done(_Message, frozen=True):
    """The slice is made.

    Attributes:
        request: number of the `Ask`.
        slab: the slab that holds it; 0 when it is in the payload, or in the descriptor that comes along.
        size: bytes used in the slab, or size of the new slab or of the payload.
        node: description of the batch, when it was made whole.
        layout: encoded layout, when it was made of rows.
        seconds: wall time of the work.
        cpu: CPU seconds of the work.
        fresh: a descriptor of a new slab of `size` bytes comes along.
    """

    request: int
    slab: int
    size: int
    node: list[Any] | None
    layout: bytes
    seconds: float
    cpu: float
    fresh: bool = False


class Unstackable(_Message, frozen=True):
    """The samples of the slice do not stack row by row: ask for the whole batch."""

    request: int


class Failed(_Message, frozen=True):
    """The user's code raised."""

    request: int
    error: RemoteError


class Lost(_Message, frozen=True):
    """An executor died over this slice."""

    request: int
    reason: str


class Cancel(_Message, frozen=True):
    """These answers are not wanted any more. Each still comes: `Cancelled`, or what was under way."""

    requests: list[int]


class Cancelled(_Message, frozen=True):
    """The slice was not made; its slab is not written to any more."""

    request: int


class Ping(_Message, frozen=True):
    """A client asks for a sign of life. A feed server answers at once, whatever its executors do."""


class Pong(_Message, frozen=True):
    """A sign of life."""


class Fork(_Message, frozen=True):
    """Feed server to zygote: become executor number `number` on the socket that comes along."""

    number: int
    of: int


class Forked(_Message, frozen=True):
    """Zygote to feed server."""

    number: int
    pid: int


class Exited(_Message, frozen=True):
    """Zygote to feed server: an executor has ended; `status` as `os.waitstatus_to_exitcode` gives it."""

    pid: int
    status: int


Message = (
    Challenge
    | Hello
    | Welcome
    | Refused
    | Dial
    | Down
    | Open
    | Opened
    | OpenFailed
    | SlabOffer
    | SlabDrop
    | Ask
    | Done
    | Unstackable
    | Failed
    | Lost
    | Cancel
    | Cancelled
    | Ping
    | Pong
    | Fork
    | Forked
    | Exited
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_hellos: msgspec.msgpack.Decoder[Hello] = msgspec.msgpack.Decoder(Hello)
_greetings: msgspec.msgpack.Decoder[Challenge | Welcome | Refused] = msgspec.msgpack.Decoder(
    Challenge | Welcome | Refused
)


def encode(message: Message) -> bytes:
    """Encodes a message."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Decodes a message. Raises msgspec.DecodeError (ValidationError included)."""
    return _decoder.decode(data)


def decode_hello(data: bytes | bytearray | memoryview) -> Message:
    """Decodes what a client may say before it has proved itself. Raises msgspec.DecodeError."""
    return _hellos.decode(data)


def decode_greeting(data: bytes | bytearray | memoryview) -> Message:
    """Decodes what a server may say before it has proved itself. Raises msgspec.DecodeError."""
    return _greetings.decode(data)

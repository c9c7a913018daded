"""What travels between a client and those who serve it: small typed messages, msgpack, no code.

The same messages are used on every connection: client to local executor, client to the feed server of its own host,
client to receiver process, receiver to remote feed server, feed server to executor. Bulk bytes are never in a message:
they are in a slab, whose descriptor is passed along (Unix socket), or follow the message as the frame's payload (TCP).

    Challenge, Hello, Welcome, Refused                  opening of a connection to a feed server (see `endpoints`)
    Dial, Down                                          client and receiver: connect to a host; it is gone
    Open -> Opened | OpenFailed, and Close              a pipeline, by name
    SlabOffer (with a descriptor), SlabDrop             a slab of the client that results may be written to
    SliceRequest -> Done | Unstackable | Failed | Lost | Cancelled, and Cancel   a slice; one answer to every request
    Ping -> Pong                                        client to feed server: a sign of life
    StatusRequest -> Status                             client to feed server: executors, clients, queue, rates
    Fork -> Forked, Exited                              feed server and its fork server
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from headrace.feed.batch.plain_values import digest_of
from headrace.feed.identifiers import PipelineNumber, RequestNumber, SlabNumber

VERSION = 7
MAX_SHARDS = 65_536  # of a worker
MAX_KEY = 1024  # characters of a shard's key
ShardKey = Annotated[str, msgspec.Meta(max_length=MAX_KEY)]
ShardSize = Annotated[int, msgspec.Meta(ge=0)]
MAX_TOKEN = 64 << 10  # bytes; a longer one is not kept
Until = Literal["first", "all"]
_TOLD = 160


class Mixing(msgspec.Struct, frozen=True, array_like=True):
    """What a mixture of sources is made of, as workers tell it to the trainer, who may not have the data.

    Attributes:
        names: of the sources, in the order of their rows.
        rows: of each, at least 1.
        weights: of each, not negative; only their ratios count.
        until: what ends an epoch: the first source that is used up, or the last.
        epoch_rows: rows of an epoch, if the user says how many; 0 else.
        schedule: weights that hold later: after how many samples of the run, and what they are then.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    weights: tuple[float, ...]
    until: Until = "first"
    epoch_rows: int = 0
    schedule: tuple[tuple[int, tuple[float, ...]], ...] = ()

    @property
    def identity(self) -> list[object]:
        """All of it, for digests: without a schedule, what it was before there were any."""
        *fields, schedule = msgspec.structs.astuple(self)
        return [*fields, schedule] if schedule else fields

    def shares(self, weights: tuple[float, ...] | None = None) -> dict[str, float]:
        """Returns weights, by default its own, that sum up to 1, by name."""
        given = self.weights if weights is None else weights
        return {name: weight / sum(given) for name, weight in zip(self.names, given, strict=True)}

    def weighted(self, weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]]) -> Mixing:
        """Returns the mixture with weights, or with a schedule of them.

        Raises:
            ValueError: neither, a place that is no number of samples or not behind the one before, or see `ordered`.
        """
        steps = [(0, weights)] if isinstance(weights, Mapping) else weights
        pairs = isinstance(steps, Sequence) and all(isinstance(step, Sequence) and len(step) == 2 for step in steps)
        if not pairs or not steps or not all(isinstance(step[1], Mapping) for step in steps):
            raise ValueError(
                f"weights are a dict with a number for each of {', '.join(self.names)}, or a list of such dicts, each "
                f"behind the samples after which it holds: [(0, {{...}}), (100_000, {{...}})]; got {weights!r}"
            )
        before = -1
        for place, _ in steps:
            if isinstance(place, bool) or not isinstance(place, int) or place <= before or (before < 0 and place):
                raise ValueError(
                    f"weights hold from numbers of samples on that begin with 0 and grow, got {place!r} behind "
                    f"{'nothing' if before < 0 else before}"
                )
            before = place
        (_, first), *later = [(place, self.ordered(named)) for place, named in steps]
        return msgspec.structs.replace(self, weights=first, schedule=tuple(later))

    def ordered(self, weights: Mapping[str, float]) -> tuple[float, ...]:
        """Returns weights in the order of the sources.

        Raises:
            ValueError: a name is missing or unknown, a weight is negative or no number, or all are 0.
        """
        for name in weights:
            if name not in self.names:
                raise ValueError(f"weights name {name!r}, and the sources are {', '.join(map(repr, self.names))}")
        for name in self.names:
            if name not in weights:
                raise ValueError(f"weights have none for {name!r}; 0 leaves a source out")
        found = tuple(_weight(name, weights[name]) for name in self.names)
        if not sum(found):
            raise ValueError("all weights are 0: at least one source must have more")
        return found

    def __str__(self) -> str:
        told = " ".join(f"{name}={weight:g}" for name, weight in zip(self.names, self.weights, strict=True))
        ends = f"rows={self.epoch_rows}" if self.epoch_rows else f"until={self.until}"
        return f"{told} {ends}"

    @property
    def name(self) -> str:
        """A short text that differs when names, weights, or what ends an epoch differ."""
        told = str(self)
        exact = [*map(repr, self.weights)]
        if len(told) <= _TOLD and exact == [repr(float(f"{weight:g}")) for weight in self.weights]:
            return told
        return f"{told[:_TOLD]} {digest_of([self.names, exact, self.until], b'')}"


def _weight(name: str, weight: float) -> float:
    number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    if not number or not 0 <= weight < float("inf"):
        raise ValueError(f"the weight of {name!r} must be a number of at least 0, got {weight!r}")
    return float(weight)


class Draw(msgspec.Struct, frozen=True, array_like=True):
    """Outputs of one lane: from number `first` on, `count` of them, fewer at the lane's end.

    The address of an output is (epoch, lane, k). A token is where a reader of the lane stood before its output `at`: it
    saves the replay of what lies before, and nothing else. Without it the same outputs come, later.

    Attributes:
        lane, lanes: which one, of how many.
        first, count: see above.
        shuffle: whether the rows of a stream over counted shards are shuffled; run and runs of a `feed.Window`.
        drop_last: whether fewer than `count` outputs are none.
        at, token: see the module; without a token `at` is 0.
        skip: whether rows that a stream's steps raise over are left out.
        part: outputs that go into one batch together with those of other lanes; the outputs travel one by one then,
            and with `drop_last` whole parts only. 0: they are a batch by themselves, and travel as that.
        share: which part of the rows that the worker holds the lane takes, and of how many, where workers hold
            different shards; None where it is part `lane` of `lanes`.
    """

    lane: int
    lanes: int
    first: int
    count: int
    shuffle: bool | tuple[int, int] = False
    drop_last: bool = False
    at: int = 0
    token: bytes = b""
    part: int = 0
    skip: bool = False
    share: tuple[int, int] | None = None


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """What came of a `Draw`.

    Attributes:
        rows: outputs that were made.
        ended: whether the lane has none behind them.
        at, token: where the reader can be opened again; no token if it has none.
        behind: outputs before `first` that are still to be replayed. Then nothing was made, and it is asked again.
        note: what the user should know; empty for nothing.
        tokens, padding: of every output, where they are packed sequences: tokens of documents, and of padding.
        sources: of every output, where they are of a mixture: the names.
        skipped: rows that were left out, why, and the number of the output that comes next behind each. A row of a
            source of a mixture has the source's name before its number: ``web/7``.
    """

    rows: int
    ended: bool = False
    at: int = 0
    token: bytes = b""
    behind: int = 0
    note: str = ""
    tokens: list[int] = []
    padding: list[int] = []
    sources: list[str] = []
    skipped: list[tuple[int | str, str, int]] = []


class ExecutorStatus(msgspec.Struct, frozen=True, array_like=True):
    """One executor. `slices`: made by its process; `restarts`: how often its number was replaced."""

    number: int
    pid: int
    busy: bool
    slices: int
    restarts: int


class JobStatus(msgspec.Struct, frozen=True, array_like=True):
    """One job that a feed server serves.

    Attributes:
        name: empty for all clients that named none.
        clients: connections.
        queue: slices that wait for an executor.
        slices, bytes, cpu_seconds: made since its first client came.
        staging_bytes: memory of results on their way to it.
    """

    name: str
    clients: int
    queue: int
    slices: int
    bytes: int
    cpu_seconds: float
    staging_bytes: int


class ClientStatus(msgspec.Struct, frozen=True, array_like=True):
    """One client of a feed server. `name` as in the server's log; `local`: over the Unix socket."""

    name: str
    rank: int
    world_size: int
    local: bool


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Fork(_Message, frozen=True):
    """Feed server to fork server: become executor number `number` on the socket that comes along."""

    number: int
    of: int


class Forked(_Message, frozen=True):
    """Fork server to feed server."""

    number: int
    pid: int


class Exited(_Message, frozen=True):
    """Fork server to feed server: an executor has ended; `status` as `os.waitstatus_to_exitcode` gives it."""

    number: int
    status: int


class Challenge(_Message, frozen=True):
    """First message of a feed server. `nonce`: 32 random bytes."""

    version: int
    nonce: bytes


class Hello(_Message, frozen=True):
    """A client's answer. `dialled`: the address that its connection leads to, as its kernel has it."""

    version: int
    nonce: bytes
    mac: bytes
    client: str
    rank: int = 0
    world_size: int = 1
    dialled: str = ""


class Welcome(_Message, frozen=True):
    """The server has accepted; `mac` proves that it holds the secret too."""

    mac: bytes
    host: str
    executors: int


class Refused(_Message, frozen=True):
    """The server does not accept; the connection is closed after it."""

    reason: str


class Dial(_Message, frozen=True):
    """Client to receiver: connect the frame's route to `address` (``tcp://ip:port``).

    `tls_ca`: CA file for TLS. `certified`: name or IP that the server's certificate must hold.
    """

    address: str
    secret: bytes
    client: str
    rank: int = 0
    world_size: int = 1
    tls_ca: str = ""
    certified: str = ""


class Down(_Message, frozen=True):
    """Receiver to client: the frame's route has no connection (any more). `refused`: the server refuses this client.

    Client to receiver: it is to have none any more.
    """

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
        lanes: how many a dataset without a count is read in; 0 for a dataset with rows by number.
        shards: feed server to executor: what its host has announced; shards that it has got since are left out.
        job: which job of those that share the server; empty for all that do not say.
        opener: which loader object, one of all that there are; the same when it comes back on another connection.
        ranks: how many share the lanes.
    """

    pipeline: PipelineNumber
    factory: str
    arguments: dict[str, Any]
    collate: str
    init: str
    batched: bool
    loader: str = ""
    plan: str = ""
    shards: list[tuple[str, int]] = []
    lanes: int = 0
    job: str = ""
    opener: str = ""
    ranks: int = 1


class Close(_Message, frozen=True):
    """Feed server to executor: nobody has this pipeline open any more."""

    pipeline: PipelineNumber


class Opened(_Message, frozen=True):
    """The pipeline is built.

    Attributes:
        pipeline: number given in `Open`.
        length: of its dataset, -1 without.
        whole: batches are always made whole.
        numerics: fingerprint; empty of a pipeline that was handed over as an object, to processes of the trainer's own.
        shards: keys and samples that are held there, sorted; empty when all of the data is there. See `plan.shard_map`.
        digests: of the shards, in their order, or one of all (always so of data in lanes); empty when the dataset tells
            none.
        mixing: what a mixture is made of; its rows are those of this host.
    """

    pipeline: PipelineNumber
    length: int
    whole: bool
    numerics: dict[str, str]
    shards: Annotated[list[tuple[ShardKey, ShardSize]], msgspec.Meta(max_length=MAX_SHARDS)] = []
    digests: list[str] = []
    mixing: Mixing | None = None


class RemoteError(msgspec.Struct, frozen=True, array_like=True):
    """An exception of the user's code. `kind` is ``module:qualname`` of its type."""

    kind: str
    message: str
    traceback: str


class OpenFailed(_Message, frozen=True):
    """The pipeline cannot be built here."""

    pipeline: PipelineNumber
    error: RemoteError


class SlabOffer(_Message, frozen=True):
    """One descriptor comes with this message: a memfd of `size` bytes."""

    slab: SlabNumber
    size: int


class SlabDrop(_Message, frozen=True):
    """The slab will not be used any more; unmap it."""

    slab: SlabNumber


class BatchRows(msgspec.Struct, frozen=True, array_like=True):
    """One batch of a `SliceRequest`, or a run of its rows.

    Attributes:
        step: number of the batch in the epoch.
        position: plan position of the batch's first row.
        rows: rows of the whole batch.
        first, last: the rows that are asked for.
        keys: one a row: plain values, or with `described` the description of the list of them, as in `tree`.
        described: see `keys`.
        key_bytes: block that belongs to a description.
        left_out: rows of the batch that were skipped; `keys` has none for them. Only in requests for whole batches.
    """

    step: int
    position: int
    rows: int
    first: int
    last: int
    keys: list[Any]
    described: bool = False
    key_bytes: bytes = b""
    left_out: tuple[int, ...] = ()


class SliceRequest(_Message, frozen=True):
    """Make a slice: rows of one batch, or several small batches whole.

    Attributes:
        number: of the request, which the answer repeats.
        pipeline: number given in `Open`.
        epoch, seed: address of the batches, and the seed of their random numbers.
        batches: one batch or a run of its rows, or several whole batches.
        whole: make batches with the collate function, do not write rows.
        slab: slab to write to, 0 for none.
        layout: encoded layout of the batches, empty when it is not known yet.
        check: `MAKE`, `MAKE_AND_SUM` (with digests), or `SUM` (digests only, no data).
        avoid: executor that should not make it, as in `Done.executor`; -1 for none.
        deadline: seconds after which the executor is taken for hung, 0 for none.
        draw: outputs of a lane that make the only batch, instead of samples by their keys.
        sums: feed server to executor: the answer comes with the sums of what is sent of it.
        alone: feed server to executor: the rows are a block of their own, not a part of their batch's.
    """

    number: RequestNumber
    pipeline: PipelineNumber
    epoch: int
    seed: int
    batches: tuple[BatchRows, ...]
    whole: bool
    slab: SlabNumber = SlabNumber(0)
    layout: bytes = b""
    check: int = 0
    avoid: int = -1
    deadline: float = 0.0
    draw: Draw | None = None
    sums: bool = False
    alone: bool = False


MAKE, MAKE_AND_SUM, SUM = 0, 1, 2


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """The user's code raised over a batch. `row` of the batch, -1 when it was not over one row (in `collate_fn`)."""

    batch: int
    row: int
    error: RemoteError


class Done(msgspec.Struct, array_like=True, tag=True):
    """The slice is made: it lies in the slab that was asked for, in a new one, or in the payload.

    It is filled in on its way, by the executor, the feed server and the receiver: each has one of its own.

    Attributes:
        request: number of the `SliceRequest`.
        size: bytes used in the slab, or size of the new slab or of the payload.
        nodes: description of every batch, when they were made whole; offsets count from the start of the slab. None
            for one that failed.
        layout: encoded layout, when they were made of rows; several batches stand one after the other.
        seconds: wall time of the work.
        cpu: CPU seconds of the work.
        fresh: a descriptor of a new slab of `size` bytes comes along.
        failures: batches that could not be made; the others were.
        executor: who made it, a number within the host.
        digests: of every row, or of every batch that was made whole, if asked for.
        drawn: what came of a `draw`.
        link: of a server behind TCP: share of the time that its busiest connection was sending.
        sums: executor to feed server: if asked for, of the payload's chunks, see `wire.frames`.
    """

    request: RequestNumber
    size: int
    nodes: list[list[Any] | None]
    layout: bytes
    seconds: float
    cpu: float
    fresh: bool = False
    failures: tuple[Failure, ...] = ()
    executor: int = 0
    digests: list[bytes] = []
    drawn: Drawn | None = None
    link: float = 0.0
    sums: bytes = b""


class Unstackable(_Message, frozen=True):
    """The samples of the slice do not stack row by row: ask for the whole batches."""

    request: RequestNumber


class Failed(_Message, frozen=True):
    """The slice could not be begun: its pipeline is broken."""

    request: RequestNumber
    error: RemoteError


class Lost(_Message, frozen=True):
    """An executor died over this slice. `hung`: it was killed because it took too long."""

    request: RequestNumber
    reason: str
    hung: bool = False


class Cancel(_Message, frozen=True):
    """These answers are not wanted any more. Each still comes: `Cancelled`, or what was under way."""

    requests: list[RequestNumber]


class Cancelled(_Message, frozen=True):
    """The slice was not made; its slab is not written to any more."""

    request: RequestNumber


class Ping(_Message, frozen=True):
    """A client asks for a sign of life. A feed server answers at once, whatever its executors do."""


class Pong(_Message, frozen=True):
    """A sign of life."""


class StatusRequest(_Message, frozen=True):
    """Asks a feed server what it is doing."""


class Status(_Message, frozen=True):
    """What a feed server is doing.

    Attributes:
        host: its name.
        version: of headrace.
        uptime: seconds.
        executors, clients: one entry each; the process that asks for the status is not among the clients.
        queue: slices that wait for an executor.
        staging_bytes, staging_limit: memory of results on their way to clients on other hosts.
        slices, bytes, cpu_seconds: sums since the start.
        slices_per_second, bytes_per_second: over the last ten seconds.
        numerics: the executors' numerics fingerprint; before a pipeline was opened the part that needs none.
        jobs: one entry for each job that has a client.
    """

    host: str
    version: str
    uptime: float
    executors: list[ExecutorStatus]
    clients: list[ClientStatus]
    queue: int
    staging_bytes: int
    staging_limit: int
    slices: int
    bytes: int
    cpu_seconds: float
    slices_per_second: float
    bytes_per_second: float
    numerics: dict[str, str]
    jobs: list[JobStatus] = []


Answer = Done | Unstackable | Failed | Lost | Cancelled

Message = (
    Challenge | Hello | Welcome | Refused | Dial | Down | Open | Opened | OpenFailed | Close | SlabOffer
    | SlabDrop | SliceRequest | Done | Unstackable | Failed | Lost | Cancel | Cancelled | Ping | Pong | StatusRequest
    | Status | Fork | Forked | Exited
)  # fmt: skip

encode = msgspec.msgpack.Encoder().encode

# They raise msgspec.DecodeError (ValidationError included). Before a peer has proved itself, a client may say hello
# only, and a server a greeting.
Decode = Callable[[bytes | bytearray | memoryview], Message]
decode: Decode = msgspec.msgpack.Decoder(Message).decode
decode_hello: Decode = msgspec.msgpack.Decoder(Hello).decode
decode_greeting: Decode = msgspec.msgpack.Decoder(Challenge | Welcome | Refused).decode

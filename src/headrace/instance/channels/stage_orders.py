"""Which channels of a run are staged and served: the files that an engine writes for the helpers that do it.

The helper `stage` reads `<run>/engine/stage.json` and fills every `File` channel before the programs start. The helper
`serve_channels` reads `serve_channels.json` there, which says the same of the channels that it serves while they run,
and is there only if there are any.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.instance.paths import DEFAULT_BASE

S3_PREFIX = "S3Prefix"
MANIFEST = "ManifestFile"
AUGMENTED = "AugmentedManifestFile"
REPLICATED = "FullyReplicated"
SHARDED = "ShardedByS3Key"
FILE = "File"
FAST_FILE = "FastFile"
PIPE = "Pipe"
GZIP = "Gzip"
RECORD_IO = "RecordIO"
NONE = "None"

STAGE = "stage"
SERVE = "serve_channels"
SOURCES = f"{DEFAULT_BASE}/input/sources"
"""Where the links of a shard lead in an isolated instance: to a view of the data of this machine."""


class ChannelOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One channel.

    Attributes:
        name: the channel's name.
        uri: where the data are: ``s3://...``, or an absolute path.
        hosts: names of the hosts that have the channel, in the order of their places.
        data_type: ``S3Prefix``, ``ManifestFile`` or ``AugmentedManifestFile``.
        distribution: ``FullyReplicated`` or ``ShardedByS3Key``.
        input_mode: ``File``, ``FastFile`` or ``Pipe``.
        compression: ``None`` or ``Gzip``; Pipe only.
        record_wrapping: ``None`` or ``RecordIO``; Pipe only.
        seed: shuffle seed; None keeps the order of the keys or lines. Pipe only.
        attributes: attributes of an augmented manifest that are delivered, in this order.
    """

    name: str
    uri: str
    hosts: tuple[str, ...]
    data_type: str = S3_PREFIX
    distribution: str = REPLICATED
    input_mode: str = FILE
    compression: str = NONE
    record_wrapping: str = NONE
    seed: int | None = None
    attributes: tuple[str, ...] = ()

    @property
    def is_s3(self) -> bool:
        """Whether the data are in S3."""
        return self.uri.startswith("s3://")

    @property
    def is_piped(self) -> bool:
        """Whether the programs read FIFOs."""
        return self.input_mode == PIPE

    @property
    def is_mounted(self) -> bool:
        """Whether it takes a mount: FastFile on data that are not on this machine."""
        return self.input_mode == FAST_FILE and self.is_s3

    @property
    def is_link(self) -> bool:
        """Whether the channel is no more than a link to a folder of this machine."""
        plain = self.data_type == S3_PREFIX and self.distribution == REPLICATED and self.input_mode != PIPE
        return plain and not self.is_s3

    @property
    def shares(self) -> int:
        """Into how many parts the channel is dealt: 1 when every host gets all."""
        return len(self.hosts) if self.distribution == SHARDED else 1

    def place(self, host: str) -> int:
        """Which of the shares a host gets."""
        return self.hosts.index(host) if self.distribution == SHARDED else 0


class StageOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All channels of the hosts of one machine that need more than a link.

    Attributes:
        run_id: the run.
        folder: the run's stage area: ``data/<channel>``, and the mount of FastFile channels.
        bases: host name to its /opt/ml, of the hosts of this machine: all of a run, or some.
        channels: the channels that any of them has; other hosts may have them too, on other machines.
        isolated: hosts have views of their own of what is in the stage area, so that links are made for none.
        version: of this record.
    """

    run_id: str
    folder: str
    bases: dict[str, str]
    channels: tuple[ChannelOrder, ...]
    isolated: bool = False
    version: int = 1

    def area(self, channel: str) -> Path:
        """Where the data of a channel are kept."""
        return Path(self.folder) / "data" / channel

    def hosts_of(self, channel: ChannelOrder) -> tuple[str, ...]:
        """Returns the hosts of this machine that have a channel."""
        return tuple(host for host in channel.hosts if host in self.bases)

    def places_of(self, channel: ChannelOrder) -> tuple[int, ...]:
        """Returns which shares of a channel are those of hosts of this machine."""
        return tuple(sorted({channel.place(host) for host in self.hosts_of(channel)}))

    def sources(self, channel: str) -> str:
        """Where hosts see the data of this machine that a shard's links lead to; empty: where they are."""
        return f"{SOURCES}/{channel}" if self.isolated else ""

    @property
    def mount(self) -> Path:
        """Where FastFile channels are mounted."""
        return Path(self.folder) / "mount"

    @property
    def served(self) -> tuple[ChannelOrder, ...]:
        """Channels that are served while the job runs."""
        return tuple(channel for channel in self.channels if channel.is_piped or channel.is_mounted)


def order_path(run: Path, name: str) -> Path:
    """Returns where the order for one process of a run lies; `name` is `STAGE` or `SERVE`."""
    return run / "engine" / f"{name}.json"


def read_order(run: Path, name: str) -> StageOrder:
    """Reads an order. Raises OSError or msgspec.ValidationError."""
    return msgspec.json.decode(order_path(run, name).read_bytes(), type=StageOrder)


def write_orders(order: StageOrder, run: Path) -> None:
    """Writes the orders of a run. Raises OSError."""
    served = msgspec.structs.replace(order, channels=order.served)
    for name, part in ((STAGE, order), (SERVE, served)):
        if part.channels:
            path = order_path(run, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(part)) + b"\n")

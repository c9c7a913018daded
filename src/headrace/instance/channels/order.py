"""What an engine wants staged and served: the file that it leaves for the processes that do it.

The engine writes `<run>/engine/stage.json`. `engines.local.stage` reads it and fills every `File` channel before the
programs start; `engines.local.serve_channels` serves `Pipe` and `FastFile` channels while they run.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

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

NAME = "stage.json"


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
    """All channels of a run that need more than a link.

    Attributes:
        run_id: the run.
        folder: where data are kept: the run's stage area.
        bases: host name to its /opt/ml.
        channels: the channels.
        version: of this record.
    """

    run_id: str
    folder: str
    bases: dict[str, str]
    channels: tuple[ChannelOrder, ...]
    version: int = 1

    def area(self, channel: str) -> Path:
        """Where the data of a channel are kept."""
        return Path(self.folder) / channel

    @property
    def served(self) -> tuple[ChannelOrder, ...]:
        """Channels that are served while the job runs."""
        return tuple(each for each in self.channels if each.input_mode == PIPE or is_mounted(each))


def is_mounted(channel: ChannelOrder) -> bool:
    """Whether a channel needs a mount: FastFile on data that are not on this machine."""
    return channel.input_mode == FAST_FILE and channel.is_s3


def order_path(run: Path) -> Path:
    """Returns where the order of a run lies."""
    return run / "engine" / NAME


def read_order(run: Path) -> StageOrder:
    """Reads the order of a run. Raises OSError or msgspec.ValidationError."""
    return msgspec.json.decode(order_path(run).read_bytes(), type=StageOrder)


def write_order(order: StageOrder, run: Path) -> None:
    """Writes the order of a run. Raises OSError."""
    path = order_path(run)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(order)) + b"\n")

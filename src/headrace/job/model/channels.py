"""Input channels: data that the programs of some groups find under ``/opt/ml/input/data/<channel>``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import AliasChoices, Field, ValidationError, model_validator

from headrace.job.model import field_types, path_types
from headrace.job.model.frozen_model import Part, PartInvalid, given


class ShuffleConfig(Part):
    """In which order a channel's objects come, another one each epoch.

    Attributes:
        seed: seed of the order; the same seed and epoch give the same order on all hosts.
    """

    seed: field_types.Seed


class TrainingInput(Part):
    """One input channel.

    Attributes:
        s3_data: where the data is: a path, a ``file://`` URI, taken as it is (``file:///data`` is absolute,
            ``file://data`` relative), or an ``s3://`` URI. What is on this machine must exist. Also spelt `path`.
        s3_data_type: ``S3Prefix``: all that begins with `s3_data`; ``ManifestFile``: `s3_data` lists it;
            ``AugmentedManifestFile``: a file of JSON lines whose attributes are the data (`Pipe` only).
        distribution: ``FullyReplicated``: every host gets all; ``ShardedByS3Key``: every host of the channel a part.
        content_type: MIME type, for the program's information; at most 256 characters.
        input_mode: ``File``, ``FastFile`` or ``Pipe``; by default the job's. See `Job.input_mode_of`.
        compression: ``None`` or ``Gzip`` (`Pipe` only). Also spelt `compression_type`.
        record_wrapping: ``None`` or ``RecordIO`` (`Pipe` only). Also spelt `record_wrapper_type`.
        shuffle_config: the objects come in another order each epoch.
        attribute_names: at most 16, in the order in which they are streamed; required with ``AugmentedManifestFile``,
            else not allowed.
        instance_groups: groups that get the channel; by default all. Either every channel names groups or none does.
            Also spelt `instance_group_names`.

    Raises:
        JobInvalid: a value that breaks a rule.
    """

    s3_data: path_types.ChannelPath = Field(validation_alias=AliasChoices("s3_data", "path"))
    distribution: field_types.DataDistribution = "FullyReplicated"
    content_type: field_types.ContentType | None = None
    input_mode: field_types.InputMode | None = None
    s3_data_type: field_types.DataType = "S3Prefix"
    compression: field_types.Compression | None = Field(
        default=None, validation_alias=AliasChoices("compression", "compression_type")
    )
    record_wrapping: field_types.RecordWrapping | None = Field(
        default=None, validation_alias=AliasChoices("record_wrapping", "record_wrapper_type")
    )
    shuffle_config: ShuffleConfig | None = None
    attribute_names: field_types.AttributeNames = ()
    instance_groups: field_types.GroupNames | None = Field(
        default=None, validation_alias=AliasChoices("instance_groups", "instance_group_names")
    )

    def __init__(
        self,
        /,
        s3_data: str | os.PathLike[str] | None = None,
        distribution: str | None = None,
        content_type: str | None = None,
        input_mode: str | None = None,
        instance_groups: Sequence[str] | None = None,
        shuffle_config: Mapping[str, object] | ShuffleConfig | None = None,
        **others: object,
    ) -> None:
        named = {
            "s3_data": s3_data,
            "distribution": distribution,
            "content_type": content_type,
            "input_mode": input_mode,
            "instance_groups": instance_groups,
            "shuffle_config": shuffle_config,
        }
        try:
            super().__init__(**given(named), **others)
        except ValidationError as error:
            raise PartInvalid(error, type(self)) from None

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: object) -> object:
        return {"s3_data": value} if isinstance(value, (str, os.PathLike)) else value

    @property
    def is_remote(self) -> bool:
        """Whether the data is in an object store."""
        return path_types.is_remote(self.s3_data)

    def local_path(self, base: Path) -> Path:
        """Returns the channel's folder, or its manifest, on this machine. Only for a channel that is not remote.

        Args:
            base: what a relative path is relative to. ``file://data/val`` is relative, ``file:///data`` is not.
        """
        return base / path_types.local_form(self.s3_data)

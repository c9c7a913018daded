"""What `fit(inputs=...)` takes: one location, one input, or a mapping of channel names to them. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from headrace.errors import UsageError
from headrace.job import TrainingInput

DEFAULT_CHANNEL = "training"
"""Name of the channel when `inputs` is one location and not a mapping; the SDK's own."""


@runtime_checkable
class SdkInput(Protocol):
    """`sagemaker.inputs.TrainingInput`: it keeps the channel as the request holds it."""

    @property
    def config(self) -> Mapping[str, object]:
        """A channel of CreateTrainingJob without its name."""


def channels(inputs: object) -> dict[str, object]:
    """Returns the channels of a job.

    Args:
        inputs: None; a path or URI; a `TrainingInput`, ours or the SDK's; or a mapping of names to these.

    Raises:
        UsageError: something else.
    """
    if inputs is None:
        return {}
    named = inputs if isinstance(inputs, Mapping) else {DEFAULT_CHANNEL: inputs}
    return {str(name): _channel(str(name), value) for name, value in named.items()}


def _channel(name: str, value: object) -> object:
    if isinstance(value, (str, os.PathLike, TrainingInput)):
        return value
    if isinstance(value, SdkInput):
        return _of_request(name, value.config)
    raise UsageError(
        f"inputs[{name!r}] is of type {type(value).__name__}",
        "give a path, an s3:// or file:// URI, or a TrainingInput",
    )


_OF_SOURCE = {
    "S3Uri": "s3_data",
    "S3DataType": "s3_data_type",
    "S3DataDistributionType": "distribution",
    "AttributeNames": "attribute_names",
    "InstanceGroupNames": "instance_groups",
}
_OF_CHANNEL = {
    "ContentType": "content_type",
    "CompressionType": "compression",
    "RecordWrapperType": "record_wrapping",
    "InputMode": "input_mode",
}


def _of_request(name: str, config: Mapping[str, object]) -> dict[str, object]:
    source = config.get("DataSource")
    s3 = source.get("S3DataSource") if isinstance(source, Mapping) else None
    if not isinstance(s3, Mapping):
        raise UsageError(f"inputs[{name!r}] has no S3DataSource", "give a path, or an s3:// or file:// URI")
    channel = {key: s3[theirs] for theirs, key in _OF_SOURCE.items() if s3.get(theirs) is not None}
    channel |= {key: config[theirs] for theirs, key in _OF_CHANNEL.items() if config.get(theirs) is not None}
    shuffle = config.get("ShuffleConfig")
    if isinstance(shuffle, Mapping):
        channel["shuffle_config"] = {"seed": shuffle.get("Seed")}
    return channel

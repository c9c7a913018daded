"""What `fit(inputs=...)` takes: one location, one input, or a mapping of channel names to them. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from headrace.errors import UsageError
from headrace.job import TrainingInput
from headrace.job.sagemaker.field_map import CHANNELS
from headrace.job.sagemaker.from_request import read_request

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


def _of_request(name: str, config: Mapping[str, object]) -> object:
    channel = read_request({CHANNELS: [{"ChannelName": name, **config}]}).data.get("inputs")
    if not isinstance(channel, Mapping):
        raise UsageError(f"inputs[{name!r}] has no S3DataSource", "give a path, or an s3:// or file:// URI")
    return channel[name]

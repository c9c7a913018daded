"""What `fit(inputs=...)` takes: one location, one input, or a mapping of channel names to them. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol, cast, runtime_checkable

from headrace.adapters.estimator.local_bucket import channel_of, place_of
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
    if isinstance(value, (str, os.PathLike)):
        return channel_of(os.fspath(value))
    if isinstance(value, TrainingInput):
        moved = place_of(value.s3_data) != value.s3_data
        return _of_bucket(value.model_dump(exclude_unset=True)) if moved else value
    if isinstance(value, SdkInput):
        return _of_bucket(_of_request(name, value.config))
    raise UsageError(
        f"inputs[{name!r}] is of type {type(value).__name__}",
        "give a path, an s3:// or file:// URI, or a TrainingInput",
    )


def _of_bucket(channel: Mapping[str, object]) -> dict[str, object]:
    """Returns a channel whose data are where its URI leads, see `local_bucket`."""
    uri = str(channel.get("s3_data", ""))
    kind = channel.get("s3_data_type")
    found = channel_of(uri) if kind in (None, "S3Prefix") else place_of(uri)  # else the file says what the data are
    return {**channel, **({"s3_data": found} if isinstance(found, str) else found)}


def _of_request(name: str, config: Mapping[str, object]) -> Mapping[str, object]:
    channel = read_request({CHANNELS: [{"ChannelName": name, **config}]}).data.get("inputs")
    if not isinstance(channel, Mapping):
        raise UsageError(f"inputs[{name!r}] has no S3DataSource", "give a path, or an s3:// or file:// URI")
    return cast("Mapping[str, object]", channel[name])

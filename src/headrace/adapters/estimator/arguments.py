"""What each argument of an SDK estimator becomes, and what `fit(inputs=...)` takes. Pure.

An estimator makes a CreateTrainingJob request, which the job room reads as it reads one of `headrace serve`. One table
says what an argument is:

* a member of the request, under any name that some version of the SDK gave it;
* a key of the job file, which stands beside the request: what a request cannot hold (a data service, options of
  engines), or not as a user here writes it (code on this machine, typed hyperparameters, a distribution);
* refused, with what to write instead;
* read by the estimators themselves, or one of the SDK's own settings, which have no effect here.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace.errors import UsageError
from headrace.job import TrainingInput
from headrace.job.model.fields import JobFields
from headrace.job.problems.finding import Path
from headrace.job.sagemaker.translation import (
    ARGUMENTS,
    CHANNELS,
    ENTRYPOINT,
    HYPERPARAMETERS,
    VALUES,
    channel_member,
    put,
    read_request,
)
from headrace.sagemaker_parameters import LOG_LEVEL, REGION

SERVICE = "sagemaker"
"""The engine that sends a request to SageMaker."""

VERSION_1 = {
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_volume_size": "volume_size",
    "train_volume_kms_key": "volume_kms_key",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
    "distributions": "distribution",
    "image_name": "image_uri",
}
"""Name in SDK version 1 to name in version 2."""


@dataclass(frozen=True)
class Member:
    """An argument that is a member of the request.

    Attributes:
        place: where in it.
        of_service: of a request that is sent to SageMaker only; elsewhere the argument has no effect.
        write: makes the member's value of the argument's name and value; None leaves it out.
    """

    place: Path
    of_service: bool = False
    write: Callable[[str, object], object] = lambda _, value: value


@dataclass(frozen=True)
class Refused:
    """An argument that must not be ignored.

    Attributes:
        instead: what to write.
        by_service: only where the job is sent to SageMaker; elsewhere the argument has no effect.
    """

    instead: str
    by_service: bool = False


def _configuration(name: str, value: object) -> object:
    """A configuration as the request has it: a mapping, or an object of the SDK that can make one."""
    if isinstance(value, Mapping) or not value:
        return dict(value) if isinstance(value, Mapping) and value else None
    to_request = getattr(value, "_to_request_dict", None)
    if not callable(to_request):
        raise UsageError(f"{name} must be a mapping or False, not {type(value).__name__}")
    return to_request()


def _strings(name: str, value: object) -> object:
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{name} must be a list of strings, not {type(value).__name__}")
    return list(value)


def region_of(session: object) -> str:
    """Returns the region of an estimator's session; empty for one that has none."""
    region = getattr(session, "boto_region_name", None)
    return region if isinstance(region, str) else ""


_IMAGE_CONFIG = ("AlgorithmSpecification", "TrainingImageConfig")
_ARGUMENTS: dict[str, Member | Refused | None] = {
    **dict.fromkeys(JobFields.model_fields),
    **{str(key[-1]): Member(place) for place, key in VALUES if key != ("job_name",)},
    "max_retry_attempts": Member(("RetryStrategy", "MaximumRetryAttempts")),
    "container_entry_point": Member(ENTRYPOINT, write=_strings),
    "container_arguments": Member(ARGUMENTS, write=_strings),
    "container_log_level": Member((HYPERPARAMETERS, LOG_LEVEL), write=lambda _, level: json.dumps(level)),
    "debugger_hook_config": Member(("DebugHookConfig",), write=_configuration),
    "disable_output_compression": Member(
        ("OutputDataConfig", "CompressionType"), write=lambda _, value: "NONE" if value else None
    ),
    "profiler_config": Member(("ProfilerConfig",), write=_configuration),
    "sagemaker_session": Member(
        (HYPERPARAMETERS, REGION),
        write=lambda _, session: json.dumps(region_of(session)) if region_of(session) else None,
    ),
    "tensorboard_output_config": Member(("TensorBoardOutputConfig",), write=_configuration),
    "disable_profiler": Member(("ProfilerConfig", "DisableProfiler"), of_service=True),
    "enable_infra_check": Member(("InfraCheckConfig", "EnableInfraCheck"), of_service=True),
    "enable_remote_debug": Member(("RemoteDebugConfig", "EnableRemoteDebug"), of_service=True),
    "enable_sagemaker_metrics": Member(("AlgorithmSpecification", "EnableSageMakerMetricsTimeSeries"), of_service=True),
    "enable_session_tag_chaining": Member(("SessionChainingConfig", "EnableSessionTagChaining"), of_service=True),
    "training_image_config": Member(_IMAGE_CONFIG, of_service=True),
    "training_repository_access_mode": Member((*_IMAGE_CONFIG, "TrainingRepositoryAccessMode"), of_service=True),
    "git_config": Refused("clone the repository and give source_dir"),
    "model_uri": Refused("give the model as a channel in fit(inputs=...)"),
    "training_recipe": Refused("give entry_point and hyperparameters"),
    "instance_preferences": Refused("give instance_type, or instance_groups"),
    "compiler_config": Refused("choose an image with the compiler by image_uri", by_service=True),
    "model_channel_name": Refused("name the channel in fit(inputs={...})", by_service=True),
    "rules": Refused("give them as request_extras of a headrace.Job", by_service=True),
    "training_repository_credentials_provider_arn": Refused(
        "give training_image_config with TrainingRepositoryAuthConfig", by_service=True
    ),
    **dict.fromkeys(("base_job_name", "engine", "job_name", "model_dir", "script_mode")),
}
for _name in ("attempts", "command", "inputs", "max_pending_time", "request_extras", "stopping_condition"):
    _ARGUMENTS.pop(_name, None)


def checked(given: Mapping[str, object]) -> dict[str, object]:
    """Returns an estimator's arguments under their names of version 2, without those that are None.

    Raises:
        UsageError: an argument that is not known, that comes in both spellings, or that cannot be honoured.
    """
    arguments = {name: value for name, value in given.items() if value is not None and name not in VERSION_1}
    for old, new in VERSION_1.items():
        if given.get(old) is None:
            continue
        if new in arguments:
            raise UsageError(f"{old} and {new} are the same argument", f"keep {new}")
        arguments[new] = given[old]
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            near = difflib.get_close_matches(name, sorted({*_ARGUMENTS, *VERSION_1}), n=1)
            raise UsageError(f"an estimator has no argument {name!r}", f"did you mean {near[0]!r}?" if near else "")
        entry = _ARGUMENTS[name]
        if isinstance(entry, Refused) and not entry.by_service:
            raise UsageError(f"{name} works only on SageMaker's own service", entry.instead)
        if isinstance(entry, Member):
            entry.write(name, value)
        if name == "script_mode" and value is False:
            raise UsageError("script_mode=False is not possible: an entry point is always a script", "leave it out")
    if arguments.get("container_arguments") and not arguments.get("container_entry_point"):
        raise UsageError("container_arguments need a program", "give container_entry_point too, or hyperparameters")
    return arguments


def request_of(arguments: Mapping[str, object], engine: str) -> tuple[dict[str, object], dict[str, object]]:
    """Returns the request that arguments make, without name and channels, and the keys of the job beside it.

    Args:
        arguments: as `checked` returns them.
        engine: that runs the job.

    Raises:
        UsageError: an argument that cannot be honoured on SageMaker.
    """
    request: dict[str, object] = {}
    keys: dict[str, object] = {}
    to_service = engine == SERVICE
    for name, value in arguments.items():
        entry = _ARGUMENTS[name]
        if isinstance(entry, Refused):
            if to_service and value:
                raise UsageError(f"{name} is not possible with engine={SERVICE!r}", entry.instead)
        elif isinstance(entry, Member) and value not in ("", [], {}):  # the job's rules refuse what is empty
            if (to_service or not entry.of_service) and (member := entry.write(name, value)) is not None:
                put(request, entry.place, member)
        elif name in JobFields.model_fields and (to_service or name != "code_location"):  # here no code is uploaded
            keys[name] = value
    return request, keys


DEFAULT_CHANNEL = "training"
"""Name of the channel when `inputs` is one location and not a mapping; the SDK's own."""


@runtime_checkable
class SdkInput(Protocol):
    """`sagemaker.inputs.TrainingInput`: it keeps the channel as the request holds it."""

    @property
    def config(self) -> Mapping[str, object]:
        """A channel of CreateTrainingJob without its name."""


def channels(inputs: object) -> list[dict[str, object]]:
    """Returns the channels of a request.

    Args:
        inputs: None; a path or URI; a `TrainingInput`, ours or the SDK's; or a mapping of names to these.

    Raises:
        UsageError: something else.
    """
    named = inputs if isinstance(inputs, Mapping) else {} if inputs is None else {DEFAULT_CHANNEL: inputs}
    return [_channel(str(name), value) for name, value in named.items()]


def _channel(name: str, value: object) -> dict[str, object]:
    if isinstance(value, TrainingInput):
        return channel_member(name, value)
    if isinstance(value, (str, os.PathLike)):
        source = {"S3Uri": os.fspath(value), "S3DataType": "S3Prefix"}
        return {"ChannelName": name, "DataSource": {"S3DataSource": source}}
    if not isinstance(value, SdkInput):
        raise UsageError(
            f"inputs[{name!r}] is of type {type(value).__name__}",
            "give a path, an s3:// or file:// URI, or a TrainingInput",
        )
    channel: dict[str, object] = {"ChannelName": name, **value.config}
    if "inputs" not in read_request({CHANNELS: [channel]}).data:
        raise UsageError(f"inputs[{name!r}] has no S3DataSource", "give a path, or an s3:// or file:// URI")
    return channel

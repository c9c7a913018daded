"""What each argument of an SDK estimator becomes, and what `fit(inputs=...)` takes. Pure.

Most arguments are keys of the job file under their own name. The others are

* names of SDK version 1, which say the same as a later name;
* names that the job file spells otherwise (`max_run` belongs to `stopping_condition`);
* members of the request, some of which have a meaning on SageMaker only;
* the SDK's own settings (sessions, code upload), which have no effect where no request is sent.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
from collections.abc import Mapping
from typing import Any, Protocol, cast, runtime_checkable

from headrace.adapters.estimator.local_bucket import channel_of, place_of
from headrace.errors import UsageError
from headrace.job import TrainingInput
from headrace.job.model.fields import JobFields
from headrace.job.sagemaker.field_map import CHANNELS, get, put
from headrace.job.sagemaker.from_request import read_request
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

JOB_KEYS = frozenset(JobFields.model_fields) - {
    "code_location",  # where the SDK uploads the code; here no code is uploaded
    "command",
    "inputs",
    "job_name",
    "request_extras",
    "stopping_condition",
}
"""Arguments that are keys of the job file."""

_MEMBERS = {
    "debugger_hook_config": ("DebugHookConfig",),
    "profiler_config": ("ProfilerConfig",),
    "tensorboard_output_config": ("TensorBoardOutputConfig",),
}
"""Arguments that are members of the request and nothing else, and where in it they are."""

_IMAGE_CONFIG = ("AlgorithmSpecification", "TrainingImageConfig")
_SERVICE_MEMBERS = {
    "disable_profiler": ("ProfilerConfig", "DisableProfiler"),
    "enable_infra_check": ("InfraCheckConfig", "EnableInfraCheck"),
    "enable_remote_debug": ("RemoteDebugConfig", "EnableRemoteDebug"),
    "enable_sagemaker_metrics": ("AlgorithmSpecification", "EnableSageMakerMetricsTimeSeries"),
    "enable_session_tag_chaining": ("SessionChainingConfig", "EnableSessionTagChaining"),
    "training_image_config": _IMAGE_CONFIG,
    "training_repository_access_mode": (*_IMAGE_CONFIG, "TrainingRepositoryAccessMode"),
}
"""Likewise, of a request that is sent to SageMaker; elsewhere they have no effect."""

_CONDITION = ("max_run", "max_wait")

_REFUSED = {
    "git_config": "clone the repository and give source_dir",
    "model_uri": "give the model as a channel in fit(inputs=...)",
    "training_recipe": "give entry_point and hyperparameters",
    "instance_preferences": "give instance_type, or instance_groups",
}
"""Arguments that must not be ignored, and what to write instead."""

_REFUSED_BY_SERVICE = {
    "compiler_config": "choose an image with the compiler by image_uri",
    "model_channel_name": "name the channel in fit(inputs={...})",
    "rules": "give them as request_extras of a headrace.Job",
    "training_repository_credentials_provider_arn": "give training_image_config with TrainingRepositoryAuthConfig",
}
"""Likewise, where the job is sent to SageMaker; elsewhere they have no effect."""

OWN = frozenset(
    {
        "base_job_name",
        "container_arguments",
        "container_entry_point",
        "container_log_level",
        "disable_output_compression",
        "engine",
        "job_name",
        "max_retry_attempts",
        "model_dir",
    }
)
"""Arguments that the estimators read themselves."""

_KNOWN = JOB_KEYS.union(
    *(_MEMBERS, _SERVICE_MEMBERS, _CONDITION, _REFUSED, _REFUSED_BY_SERVICE, OWN),
    ("code_location", "sagemaker_session", "script_mode"),
)


def job_keys(given: Mapping[str, object]) -> dict[str, object]:
    """Returns the keys of the job that an estimator's arguments give, without name and inputs.

    Args:
        given: the arguments; None counts as left out.

    Raises:
        UsageError: an argument that is not known, that comes in both spellings, or that cannot be honoured.
    """
    arguments = _modern(given)
    refuse(arguments)
    data = {name: value for name, value in arguments.items() if name in JOB_KEYS}
    condition = {name: arguments[name] for name in _CONDITION if name in arguments}
    if condition:
        data["stopping_condition"] = condition
    if "max_retry_attempts" in arguments:
        data["retry"] = {"attempts": arguments["max_retry_attempts"]}
    extras: dict[str, object] = {}
    for name, place in _MEMBERS.items():
        if arguments.get(name):
            put(extras, place, _as_request(name, arguments[name]))
    texts = {}
    if "container_log_level" in arguments:
        texts[LOG_LEVEL] = json.dumps(arguments["container_log_level"])
    region = getattr(arguments.get("sagemaker_session"), "boto_region_name", None)
    if isinstance(region, str) and region:
        texts[REGION] = json.dumps(region)
    if texts:
        extras["HyperParameters"] = texts
    if arguments.get("disable_output_compression"):
        extras["OutputDataConfig"] = {"CompressionType": "NONE"}
    if extras:
        data["request_extras"] = extras
    command = [*_strings(arguments, "container_entry_point"), *_strings(arguments, "container_arguments")]
    if command:
        data["command"] = command
    return data


def refuse(arguments: Mapping[str, object]) -> None:
    """Refuses arguments that must not be ignored.

    Raises:
        UsageError: with the argument, and what to write instead.
    """
    for name, value in arguments.items():
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, sorted(_KNOWN | set(VERSION_1)), n=1)
            raise UsageError(f"an estimator has no argument {name!r}", f"did you mean {near[0]!r}?" if near else "")
        if name in _REFUSED:
            raise UsageError(f"{name} works only on SageMaker's own service", _REFUSED[name])
        if name == "script_mode" and value is False:
            raise UsageError("script_mode=False is not possible: an entry point is always a script", "leave it out")


def service_keys(
    keys: Mapping[str, object], given: Mapping[str, object], framework: str, region: str
) -> dict[str, object]:
    """Returns the keys of a job that is sent to SageMaker.

    Args:
        keys: those of the job without it.
        given: the estimator's arguments; None counts as left out.
        framework: whose image is taken without an `image_uri`; empty for none.
        region: that of the estimator's session; empty when it has none of its own.

    Raises:
        UsageError: an argument that cannot be honoured.
    """
    for name, instead in _REFUSED_BY_SERVICE.items():
        if given.get(name):
            raise UsageError(f"{name} is not possible with engine={SERVICE!r}", instead)
    result: dict[str, Any] = copy.deepcopy(dict(keys))
    for name, place in _SERVICE_MEMBERS.items():
        if given.get(name) is not None:
            put(result, ("request_extras", *place), given[name])
    for name, value in (("framework", framework), ("region", region)):
        place = ("engines", SERVICE, name)
        if value and get(result, place) is None:
            put(result, place, value)
    if given.get("code_location") is not None:
        result["code_location"] = given["code_location"]
    return result


def _modern(given: Mapping[str, object]) -> dict[str, object]:
    arguments = {name: value for name, value in given.items() if value is not None and name not in VERSION_1}
    for old, new in VERSION_1.items():
        value = given.get(old)
        if value is None:
            continue
        if new in arguments:
            raise UsageError(f"{old} and {new} are the same argument", f"keep {new}")
        arguments[new] = value
    return arguments


def _as_request(name: str, value: object) -> object:
    """A configuration as the request has it: a mapping, or an object of the SDK that can make one."""
    if isinstance(value, Mapping):
        return dict(value)
    to_request = getattr(value, "_to_request_dict", None)
    if not callable(to_request):
        raise UsageError(f"{name} must be a mapping or False, not {type(value).__name__}")
    return to_request()


def _strings(arguments: Mapping[str, object], name: str) -> list[object]:
    value = arguments.get(name, [])
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{name} must be a list of strings, not {type(value).__name__}")
    return list(value)


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

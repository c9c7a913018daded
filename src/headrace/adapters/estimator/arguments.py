"""What each argument of an SDK estimator becomes. Pure.

Most arguments are keys of the job file under their own name. The others are

* names of SDK version 1, which say the same as a later name;
* names that the job file spells otherwise (`max_run` belongs to `stopping_condition`);
* the SDK's own settings (sessions, code upload), which have no effect where no request is sent.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping

from headrace.errors import UsageError
from headrace.job.model.fields import JobFields
from headrace.sagemaker_parameters import LOG_LEVEL, REGION

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
    "debugger_hook_config": "DebugHookConfig",
    "profiler_config": "ProfilerConfig",
    "tensorboard_output_config": "TensorBoardOutputConfig",
}
"""Arguments that are members of the request and nothing else."""

_CONDITION = ("max_run", "max_wait")

PLUMBING = frozenset(
    {
        "code_location",
        "compiler_config",
        "disable_profiler",
        "enable_infra_check",
        "enable_remote_debug",
        "enable_session_tag_chaining",
        "enable_sagemaker_metrics",
        "git_config",
        "instance_preferences",
        "model_channel_name",
        "model_uri",
        "rules",
        "sagemaker_session",
        "script_mode",
        "training_image_config",
        "training_recipe",
        "training_repository_access_mode",
        "training_repository_credentials_provider_arn",
    }
)
"""Arguments that only say how a request is made or watched. See `refuse` for those that must not be ignored."""

_REFUSED = {
    "git_config": "clone the repository and give source_dir",
    "model_uri": "give the model as a channel in fit(inputs=...)",
    "training_recipe": "give entry_point and hyperparameters",
    "instance_preferences": "give instance_type, or instance_groups",
}

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
    extras = {member: _as_request(name, arguments[name]) for name, member in _MEMBERS.items() if arguments.get(name)}
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
    known = JOB_KEYS | PLUMBING | OWN | set(_CONDITION) | set(_MEMBERS)
    for name, value in arguments.items():
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known | set(VERSION_1)), n=1)
            raise UsageError(f"an estimator has no argument {name!r}", f"did you mean {near[0]!r}?" if near else "")
        if name in _REFUSED:
            raise UsageError(f"{name} works only on SageMaker's own service", _REFUSED[name])
        if name == "script_mode" and value is False:
            raise UsageError("script_mode=False is not possible: an entry point is always a script", "leave it out")


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

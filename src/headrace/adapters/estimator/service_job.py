"""What an estimator's arguments become when the job is sent to SageMaker. Pure.

Some arguments only say how a request is made. They have no effect where none is sent; here they are members of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import UsageError

ENGINE = "sagemaker"

_MEMBERS = {
    "disable_profiler": ("ProfilerConfig", "DisableProfiler"),
    "enable_infra_check": ("InfraCheckConfig", "EnableInfraCheck"),
    "enable_remote_debug": ("RemoteDebugConfig", "EnableRemoteDebug"),
    "enable_sagemaker_metrics": ("AlgorithmSpecification", "EnableSageMakerMetricsTimeSeries"),
    "enable_session_tag_chaining": ("SessionChainingConfig", "EnableSessionTagChaining"),
    "training_image_config": ("AlgorithmSpecification", "TrainingImageConfig"),
    "training_repository_access_mode": (
        "AlgorithmSpecification",
        "TrainingImageConfig",
        "TrainingRepositoryAccessMode",
    ),
}
"""Arguments, and where in the request they are."""

_REFUSED = {
    "compiler_config": "choose an image with the compiler by image_uri",
    "model_channel_name": "name the channel in fit(inputs={...})",
    "rules": "give them as request_extras of a headrace.Job",
    "training_repository_credentials_provider_arn": "give training_image_config with TrainingRepositoryAuthConfig",
}
"""Arguments that must not be ignored, and what to write instead."""


def service_keys(
    keys: Mapping[str, object], given: Mapping[str, object], framework: str, region: str
) -> dict[str, object]:
    """Returns the keys of a job for SageMaker.

    Args:
        keys: those of the job without it.
        given: the estimator's arguments; None counts as left out.
        framework: whose image is taken without an `image_uri`; empty for none.
        region: that of the estimator's session; empty when it has none of its own.

    Raises:
        UsageError: an argument that cannot be honoured.
    """
    for name, instead in _REFUSED.items():
        if given.get(name):
            raise UsageError(f"{name} is not possible with engine={ENGINE!r}", instead)
    extras = dict(_mapping(keys.get("request_extras")))
    for name, path in _MEMBERS.items():
        if given.get(name) is not None:
            _put(extras, path, given[name])
    engines = _mapping(keys.get("engines"))
    own = {"framework": framework, "region": region}
    options = {**{name: value for name, value in own.items() if value}, **_mapping(engines.get(ENGINE))}
    result = {**keys, "engines": {**engines, ENGINE: options}}
    if extras:
        result["request_extras"] = extras
    if given.get("code_location") is not None:
        result["code_location"] = given["code_location"]
    return result


def _mapping(value: object) -> dict[str, object]:
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else {}


def _put(tree: dict[str, object], path: tuple[str, ...], value: object) -> None:
    for step in path[:-1]:
        inner = _mapping(tree.get(step))
        tree[step] = inner
        tree = inner
    tree[path[-1]] = value

"""Hyperparameters as SageMaker carries them: texts, of which the SDK's are JSON; and the names that it reserves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from pydantic import JsonValue

from headrace.job.model.field_types import json_form

PROGRAM = "sagemaker_program"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
GROUPS = "sagemaker_distribution_instance_groups"

STRATEGIES: dict[str, tuple[str, ...]] = {
    "sagemaker_mpi_enabled": ("mpi", "enabled"),
    "sagemaker_mpi_num_of_processes_per_host": ("mpi", "processes_per_host"),
    "sagemaker_mpi_custom_mpi_options": ("mpi", "custom_mpi_options"),
    "sagemaker_torch_distributed_enabled": ("torch_distributed", "enabled"),
    "sagemaker_multi_worker_mirrored_strategy_enabled": ("multi_worker_mirrored_strategy", "enabled"),
    "sagemaker_parameter_server_enabled": ("parameter_server", "enabled"),
    "sagemaker_distributed_dataparallel_enabled": ("smdistributed", "dataparallel", "enabled"),
    "sagemaker_distributed_dataparallel_custom_mpi_options": ("smdistributed", "dataparallel", "custom_mpi_options"),
    "mp_parameters": ("smdistributed", "modelparallel", "parameters"),
    "sagemaker_pytorch_ddp_enabled": ("pytorchddp", "enabled"),
    "sagemaker_pytorch_ddp_custom_mpi_options": ("pytorchddp", "custom_mpi_options"),
    "sagemaker_pytorch_xla_multi_worker_enabled": ("pytorchxla", "enabled"),
}
"""Reserved hyperparameters that say how ranks are started, each with its place in a distribution."""

KNOWN = frozenset({PROGRAM, SUBMIT_DIRECTORY, GROUPS, *STRATEGIES})
"""Reserved hyperparameters that a job has keys for."""


def is_reserved(name: str) -> bool:
    """Tells whether SageMaker's containers keep a hyperparameter from the program."""
    return name.startswith("sagemaker_") or name in (
        "default_user_module_name",
        "_tuning_objective_metric",
        "mp_parameters",
    )


def decode(text: str) -> JsonValue:
    """Returns what a program gets for a hyperparameter's text: the JSON value that it is, else the text itself."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json_form(value)
    except (ValueError, RecursionError):
        return text
    return cast(JsonValue, value)


def encode(value: object, raw: object = None) -> str:
    """Returns a hyperparameter as a request carries it.

    Args:
        value: the value.
        raw: how a request wrote it; that is kept when it still means the same.
    """
    if isinstance(raw, str) and same(decode(raw), value):
        return raw
    return json.dumps(value, allow_nan=False)


def same(one: object, other: object) -> bool:
    """Tells whether two values are the same in JSON, where 1, 1.0 and true are three things."""
    return json.dumps(one) == json.dumps(other)


def encoded(values: Mapping[str, object], raw: Mapping[str, object]) -> dict[str, str]:
    """Returns hyperparameters as a request carries them, in their order. See `encode`."""
    return {name: encode(value, raw.get(name)) for name, value in values.items()}


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")

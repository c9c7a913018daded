"""Hyperparameters as SageMaker carries them: texts, mostly JSON; and the names that it reserves or gives. Pure.

Both ends of the contract use it: the job, which reads and writes requests, and the instance, which reads and writes
hyperparameters.json.
"""

from __future__ import annotations

import json

HOMOGENEOUS = "homogeneousCluster"
"""Name of the one group of a job that is given with instance_type and instance_count."""
PREFIX = "sagemaker_"
PROGRAM = "sagemaker_program"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
JOB_NAME = "sagemaker_job_name"
REGION = "sagemaker_region"
LOG_LEVEL = "sagemaker_container_log_level"
S3_OUTPUT = "sagemaker_s3_output"
GROUPS = "sagemaker_distribution_instance_groups"

ABOUT_THE_JOB = frozenset(
    {
        PROGRAM,
        SUBMIT_DIRECTORY,
        JOB_NAME,
        REGION,
        LOG_LEVEL,
        S3_OUTPUT,
        "sagemaker_enable_cloudwatch_metrics",
        "default_user_module_name",
        "_tuning_objective_metric",
    }
)
"""Reserved names that SageMaker's training toolkit does not count as framework parameters."""

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
"""Hyperparameters that say how ranks are started, each with its place in a distribution."""

NAMES = {path: name for name, path in STRATEGIES.items()}
"""The hyperparameter of each place in a distribution."""


_MEANINGS = {
    PROGRAM: ("entry_point", "the script to run"),
    SUBMIT_DIRECTORY: ("source_dir", "the folder or archive with the code"),
    JOB_NAME: ("job_name", "the name of the job"),
    GROUPS: ("distribution.instance_groups", "the groups whose hosts train together"),
}


def meaning(name: str) -> str:
    """Returns what a reserved hyperparameter is, and what a job file says instead; empty for one without such a key.

    >>> meaning("sagemaker_program")
    "sagemaker_program is the script to run, as SageMaker's SDK writes it; a job file says entry_point"
    """
    key, what = _MEANINGS.get(name, ("", ""))
    if name in STRATEGIES:
        key, what = ".".join(("distribution", *STRATEGIES[name])), "how ranks are started"
    return f"{name} is {what}, as SageMaker's SDK writes it; a job file says {key}" if key else ""


def is_reserved(name: str) -> bool:
    """Tells whether SageMaker's containers keep a hyperparameter from the program."""
    return name.startswith(PREFIX) or name in ABOUT_THE_JOB


def decode(text: str) -> object:
    """Returns what a program gets for a hyperparameter's text: the JSON value that it is, else the text itself."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value

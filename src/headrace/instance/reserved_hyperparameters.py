"""The reserved hyperparameters: what the SageMaker SDK writes beside the user's own. Pure.

A job that was made of a CreateTrainingJob request gets none of them: what its hyperparameters are, the request says.

Those that mean something outside AWS, for every host of the job:

    sagemaker_program                                  the entry point of the host's group, if it has one
    sagemaker_job_name                                 the job's name
    sagemaker_container_log_level                      20, unless the user says otherwise
    sagemaker_region                                   only when the job runs in one

and with a distribution:

    sagemaker_torch_distributed_enabled                torch_distributed
    sagemaker_mpi_enabled                              mpi, and horovod, which is mpi
    sagemaker_mpi_num_of_processes_per_host
    sagemaker_mpi_custom_mpi_options                   the user's options as one line
    sagemaker_multi_worker_mirrored_strategy_enabled   multi_worker_mirrored_strategy
    sagemaker_distribution_instance_groups             its groups, in rank order

A job may have several distributions, which a request to SageMaker cannot express. A host of one of them finds that one,
as it would in a job of its own. A host of none finds the groups of all.

There is no sagemaker_submit_directory: the code is in place already, which SageMaker's training toolkit sees.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from headrace.instance import launch_plan
from headrace.sagemaker_parameters import GROUPS, JOB_NAME, LOG_LEVEL, NAMES, PROGRAM, REGION

_INFO = 20  # logging.INFO


def job_parameters(job_name: str, entry_point: str, region: str = "") -> dict[str, object]:
    """Returns those of every job, as values."""
    parameters: dict[str, object] = {JOB_NAME: job_name}
    if entry_point:
        parameters[PROGRAM] = entry_point
    return parameters | ({REGION: region} if region else {})


def default_parameters() -> dict[str, object]:
    """Returns those that the user may set himself."""
    return {LOG_LEVEL: _INFO}


def distribution_parameters(
    worlds: Sequence[launch_plan.DistributionPlan], group: str, processes: Mapping[str, int]
) -> dict[str, object]:
    """Returns those of the distributions, as values.

    Args:
        worlds: all distributions of the job.
        group: the host's group.
        processes: group to its ranks on each host; of a group outside of MPI it is not read.

    Raises:
        KeyError: a kind of distribution that does not exist.
    """
    own = [world for world in worlds if group in world.groups] or list(worlds)
    parameters: dict[str, object] = {}
    for world in own:
        parameters[NAMES[world.kind, "enabled"]] = True
        if world.kind == launch_plan.MPI:
            counted = group if group in world.groups else world.groups[0]
            parameters[NAMES["mpi", "processes_per_host"]] = processes[counted]
            parameters[NAMES["mpi", "custom_mpi_options"]] = shlex.join(world.options)
    if own:
        parameters[GROUPS] = [name for world in own for name in world.groups]
    return parameters

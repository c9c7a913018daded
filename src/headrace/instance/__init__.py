"""What one instance sees: the container contract, the same in every engine.

An engine (or SageMaker) writes the /opt/ml tree of a host; the agent turns it into variables and arguments for the
user's programs; the programs read it through `Environment`.

    paths              where things lie below the base directory
    tree               `build_tree`: writes the tree of one host, with a copy of the code
    environment        `Environment`: reads it, under the names of SageMaker's training toolkit, and its SM_* variables
    variables          `program_variables`: those, and headrace's own
    entry_command      the command line of an entry point; `hyperparameter_arguments`: hyperparameters as its arguments
    frameworks         what torch.distributed, torchrun, TensorFlow and tf.data.service are started with
    kept_files         what leaves a host, as the host sees it; `write_failure`, `read_failure`: output/failure
    launch_plan        the launch plan, which goes beyond SageMaker's own files, and the run's secrets beside it
    lifeline           what an engine tells agents and coordinator
    machine            CPUs, GPUs and Neuron cores of this instance
    storage            folders and S3 buckets, with one interface (`files` and `s3` behind it)
    channels           the data of input channels

Names are imported when they are first used: a program that only wants `Environment` pays for nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_EXPORTS = {
    "Channel": "tree",
    "Environment": "environment",
    "TreePaths": "paths",
    "UnknownChannel": "environment",
    "build_tree": "tree",
    "global_ranks": "frameworks",
    "hyperparameter_arguments": "entry_command",
    "program_variables": "variables",
    "read_failure": "kept_files",
    "torch_distributed_variables": "frameworks",
    "write_failure": "kept_files",
}

__all__ = [
    "Channel",
    "Environment",
    "TreePaths",
    "UnknownChannel",
    "build_tree",
    "global_ranks",
    "hyperparameter_arguments",
    "program_variables",
    "read_failure",
    "torch_distributed_variables",
    "write_failure",
]

if TYPE_CHECKING:
    from headrace.instance.entry_command import hyperparameter_arguments
    from headrace.instance.environment import Environment, UnknownChannel
    from headrace.instance.frameworks import global_ranks, torch_distributed_variables
    from headrace.instance.kept_files import read_failure, write_failure
    from headrace.instance.paths import TreePaths
    from headrace.instance.tree import Channel, build_tree
    from headrace.instance.variables import program_variables


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

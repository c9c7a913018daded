"""The SM_* variables that SageMaker's training toolkit sets, in its format. Pure.

``SM_`` and the name in upper case (hyphens stay), a string as it is, None as the empty string, all else as compact JSON
with sorted keys.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.instance.program_arguments import hyperparameter_arguments

if TYPE_CHECKING:
    from headrace.instance.environment import Environment

# Properties of `Environment` that are variables under their own name.
_SAME_NAME = (
    "current_host",
    "current_instance_group",
    "current_instance_group_hosts",
    "current_instance_type",
    "distribution_instance_groups",
    "framework_module",
    "hosts",
    "input_config_dir",
    "input_data_config",
    "input_dir",
    "instance_groups",
    "instance_groups_dict",
    "is_hetero",
    "log_level",
    "model_dir",
    "module_dir",
    "module_name",
    "network_interface_name",
    "num_cpus",
    "num_gpus",
    "num_neurons",
    "output_data_dir",
    "output_dir",
    "output_intermediate_dir",
    "resource_config",
    "user_entry_point",
)


def format_value(value: object) -> str:
    """Returns a value as the toolkit writes it into a variable.

    >>> format_value("a b"), format_value(None), format_value({"b": [1, True], "a": None})
    ('a b', '', '{"a":null,"b":[1,true]}')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def format_name(name: str) -> str:
    """Returns the variable of a name: ``format_name("hp_batch-size") == "SM_HP_BATCH-SIZE"``."""
    return f"SM_{name}".upper()


def toolkit_variables(env: Environment, **instead: object) -> dict[str, str]:
    """Returns the SM_* variables that SageMaker's training toolkit would set on this instance.

    Args:
        env: the instance.
        **instead: properties that have another value than in `env`.
    """
    values = {**env, **instead}
    named: dict[str, object] = {name: values[name] for name in _SAME_NAME}
    named |= {
        "hps": values["hyperparameters"],
        "framework_params": values["additional_framework_parameters"],
        "channels": sorted(env.channel_input_dirs),
        "training_env": values,
        "user_args": hyperparameter_arguments(env.hyperparameters),
    }
    if env.topology:
        named["topology"] = env.topology
    named |= {f"channel_{name}": path for name, path in env.channel_input_dirs.items()}
    named |= {f"hp_{name}": value for name, value in env.hyperparameters.items()}
    return {format_name(name): format_value(value) for name, value in named.items()}

"""Prints who this instance is, both ways: through `headrace.Environment`, and from the files and variables themselves.

The first way has the names of SageMaker's training toolkit. The second needs no library at all. Both must agree; the
script exits with 1 if they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from headrace import Environment

# What is printed, and the variable that says the same.
NAMES = {
    "current_host": "SM_CURRENT_HOST",
    "current_instance_type": "SM_CURRENT_INSTANCE_TYPE",
    "current_instance_group": "SM_CURRENT_INSTANCE_GROUP",
    "current_instance_group_hosts": "SM_CURRENT_INSTANCE_GROUP_HOSTS",
    "hosts": "SM_HOSTS",
    "instance_groups": "SM_INSTANCE_GROUPS",
    "instance_groups_dict": "SM_INSTANCE_GROUPS_DICT",
    "is_hetero": "SM_IS_HETERO",
    "distribution_instance_groups": "SM_DISTRIBUTION_INSTANCE_GROUPS",
    "distribution_hosts": "SM_DISTRIBUTION_HOSTS",
    "hyperparameters": "SM_HPS",
}


def from_files() -> dict[str, object]:
    """The same facts from /opt/ml/input/config, without any library."""
    config = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "input", "config")
    resources = json.loads((config / "resourceconfig.json").read_text())
    parameters = json.loads((config / "hyperparameters.json").read_text())
    groups = {group["instance_group_name"]: group for group in resources["instance_groups"]}
    distribution = json.loads(parameters.get("sagemaker_distribution_instance_groups", "[]"))
    return {
        "current_host": resources["current_host"],
        "current_instance_type": resources["current_instance_type"],
        "current_instance_group": resources["current_group_name"],
        "current_instance_group_hosts": groups[resources["current_group_name"]]["hosts"],
        "hosts": resources["hosts"],
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "distribution_instance_groups": distribution,
        "distribution_hosts": [host for name in distribution for host in groups[name]["hosts"]],
        "hyperparameters": {
            name: json.loads(value) for name, value in parameters.items() if not name.startswith("sagemaker_")
        },
    }


def from_variables() -> dict[str, object]:
    """The same facts from SM_*: a string is itself, everything else is JSON."""
    strings = {"current_host", "current_instance_type", "current_instance_group"}
    values = {name: os.environ[variable] for name, variable in NAMES.items()}
    return {name: value if name in strings else json.loads(value) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--greeting", default="Hello")
    parser.add_argument("--times", type=int, default=1)
    arguments = parser.parse_args()

    env = Environment()
    for _ in range(arguments.times):
        print(f"{arguments.greeting}! I am {env.current_host} of {env.current_instance_group}.")

    raw, variables = from_files(), from_variables()
    wrong = []
    for name, variable in NAMES.items():
        print(f"env.{name} = {env[name]!r}")
        print(f"  {variable}={os.environ[variable]}")
        if not env[name] == raw[name] == variables[name]:
            wrong.append(f"{name}: Environment {env[name]!r}, files {raw[name]!r}, variables {variables[name]!r}")
    for name, directory in env.channel_input_dirs.items():
        print(f"channel {name}: {directory}")
    if wrong:
        sys.exit("the two ways differ\n" + "\n".join(wrong))
    print("Both ways agree.")


if __name__ == "__main__":
    main()

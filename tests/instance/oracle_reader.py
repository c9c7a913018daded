"""Runs inside the oracle's environment: what sagemaker-training itself reports about trees and hyperparameters.

Standard input: {"bases": [base directory, ...], "hyperparameters": [content of a hyperparameters.json, ...]}
Standard output: {"version": its version, "trees": {base: {properties, variables, arguments, ...}},
"dialect": [{arguments, variables}, ...]}

One process reads everything, because the toolkit takes a second to import; its `environment` module is loaded anew
for each tree, because it computes all paths when it is imported.
"""

import importlib
import json
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path

question = json.load(sys.stdin)
inherited = dict(os.environ)
search_path = list(sys.path)

# Must be set before the import, or the toolkit makes a tree in the home directory.
os.environ["SAGEMAKER_BASE_DIR"] = question["bases"][0]
from sagemaker_training import environment, mapping  # noqa: E402


def read_tree(base):
    os.environ.clear()
    os.environ.update(inherited, SAGEMAKER_BASE_DIR=base)
    importlib.reload(environment)
    env = environment.Environment()
    arguments = env.to_cmd_args()
    # What entry_point.run does before it starts the user's program.
    sys.path[:] = [environment.code_dir, *search_path]
    environment.write_env_vars(env.to_env_vars())
    refused = {}
    for name in ("no_such_property", "to_cmd_args"):
        try:
            env[name]
        except (AttributeError, KeyError) as error:
            refused[name] = type(error).__name__
    return {
        "properties": dict(env),
        "iteration": list(env),
        "length": len(env),
        "refused": refused,
        "public": sorted(name for name in dir(env) if not name.startswith("_")),
        "s3_output": env.sagemaker_s3_output(),
        "arguments": arguments,
        "variables": dict(os.environ),
    }


def speak_dialect(content, directory):
    path = Path(directory, "hyperparameters.json")
    path.write_text(json.dumps(content))
    environment.hyperparameters_file_dir = str(path)
    decoded = environment.read_hyperparameters()
    return {
        "decoded": decoded,
        "arguments": mapping.to_cmd_args(decoded),
        "variables": mapping.to_env_vars({f"hp_{name}": value for name, value in decoded.items()}),
    }


with tempfile.TemporaryDirectory() as scratch:
    answer = {
        "version": metadata.version("sagemaker-training"),
        "trees": {base: read_tree(base) for base in question["bases"]},
        "dialect": [speak_dialect(content, scratch) for content in question["hyperparameters"]],
    }
json.dump(answer, sys.stdout)

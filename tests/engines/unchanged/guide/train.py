"""Every group has its own task, told by the toolkit's Environment; each has its own channel."""

# ruff: noqa

import json
import os
import sys
from pathlib import Path

from sagemaker_training import environment

env = environment.Environment()
channels = {name: sorted(os.listdir(path)) for name, path in env.channel_input_dirs.items()}
tasks = {"instance_group_1": "preprocess", "instance_group_2": "train"}
print(
    json.dumps([env.current_host, tasks[env.current_instance_group], channels, sys.argv[1:], dict(env.hyperparameters)])
)
Path(env.model_dir, env.current_host + ".txt").write_text(tasks[env.current_instance_group])

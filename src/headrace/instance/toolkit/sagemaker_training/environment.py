"""`sagemaker_training.environment`, as far as programs use it: `Environment` and the paths of the instance."""

from __future__ import annotations

from headrace.instance.environment import Environment
from headrace.instance.paths import TreePaths, base_directory

_paths = TreePaths(base_directory())

base_dir: str = str(_paths.base)
code_dir: str = str(_paths.code)
model_dir: str = str(_paths.model)
input_dir: str = str(_paths.input)
input_data_dir: str = str(_paths.input_data)
input_config_dir: str = str(_paths.input_config)
output_dir: str = str(_paths.output)
output_data_dir: str = str(_paths.output_data)
output_intermediate_dir: str = str(_paths.output_intermediate)

__all__ = ["Environment"]

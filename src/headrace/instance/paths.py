"""Where things lie in an instance's tree.

    <base>/                        /opt/ml, or $SAGEMAKER_BASE_DIR
        code/                      the user's code
        input/config/              hyperparameters.json, inputdataconfig.json, resourceconfig.json
        input/data/<channel>/      input data
        model/                     the trained model; becomes model.tar.gz
        checkpoints/               kept while the job runs, given back to the next attempt
        output/data/               other artefacts; becomes output.tar.gz
        output/intermediate/       artefacts that are wanted while the job runs
        output/failure             why it failed, if it did (see `outcome`)

Pure: nothing here touches the disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

BASE_VARIABLE = "SAGEMAKER_BASE_DIR"
DEFAULT_BASE = "/opt/ml"


class TreePaths:
    """Paths inside one instance's tree.

    Args:
        base: the base directory.
    """

    def __init__(self, base: str | os.PathLike[str]) -> None:
        self.base = Path(base)
        self.code = self.base / "code"
        self.model = self.base / "model"
        self.checkpoints = self.base / "checkpoints"
        self.input = self.base / "input"
        self.input_config = self.input / "config"
        self.input_data = self.input / "data"
        self.output = self.base / "output"
        self.output_data = self.output / "data"
        self.output_intermediate = self.output / "intermediate"
        self.failure = self.output / "failure"
        self.hyperparameters = self.input_config / "hyperparameters.json"
        self.input_data_config = self.input_config / "inputdataconfig.json"
        self.resource_config = self.input_config / "resourceconfig.json"

    def __repr__(self) -> str:
        return f"TreePaths({str(self.base)!r})"

    def channel(self, name: str) -> Path:
        """Directory of one input channel."""
        return self.input_data / name


def base_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the base directory of this instance: $SAGEMAKER_BASE_DIR, by default /opt/ml."""
    return Path((os.environ if environ is None else environ).get(BASE_VARIABLE) or DEFAULT_BASE)

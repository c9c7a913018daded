"""A program that imports SageMaker's toolkit by name finds it, or headrace's Environment in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.instance.variables import program_variables

PROGRAM = """
from sagemaker_training import environment
env = environment.Environment()
print(environment.__name__, type(env).__module__)
print(env.current_host, env.current_instance_group, env.is_hetero, environment.model_dir == env.model_dir)
"""


def run(job, make_plan, before: str = "") -> list[str]:
    variables = program_variables(job.environment("algo-3"), make_plan(), inherited={})
    path = os.pathsep.join(filter(None, [before, variables["PYTHONPATH"], str(Path(__file__).parents[2] / "src")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.splitlines()


def test_without_the_toolkit_its_name_leads_to_headrace(job, make_plan) -> None:
    assert run(job, make_plan) == [
        "sagemaker_training.environment headrace.instance.environment",
        "algo-3 dnn_group True True",
    ]


def test_the_installed_toolkit_wins_wherever_it_stands_in_the_search_path(job, make_plan, tmp_path: Path) -> None:
    real = tmp_path / "site" / "sagemaker_training"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("")
    (real / "environment.py").write_text(
        "from headrace.instance.environment import Environment as _Base\n"
        "class Environment(_Base):\n    '''The real one.'''\n"
        "model_dir = Environment().model_dir\n"
    )
    sitecustomize = tmp_path / "first"
    sitecustomize.mkdir()
    (sitecustomize / "sitecustomize.py").write_text(f"import sys; sys.path.append({str(real.parent)!r})\n")
    lines = run(job, make_plan, before=str(sitecustomize))
    assert lines[0] == "sagemaker_training.environment sagemaker_training.environment"

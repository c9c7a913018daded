"""`headrace.log`: what a script hands over is in its run, once, and outside a job nothing happens."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.insight import report
from headrace.runs import Run, Stream, create_run

RANK = Stream("dnn", "algo-1", "3")
SCRIPT = """
import sys
import headrace
for i in range(1000):
    headrace.log({"loss": 1000.0 - i, "accuracy": i}, step=i)
headrace.log({"loss": float("nan")}, step=1000)
headrace.log({"loss": float("inf")}, step=1001)
print(sorted({"torch", "grpc", "numpy", "pydantic"} & set(sys.modules)))
"""


def logged(script: str, file: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HEADRACE_METRICS": file}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True, timeout=60
    )


@pytest.mark.promise("metrics", "values of `headrace.log` are counted once; report, charts and final metrics have them")
def test_what_a_script_logs_is_summed_up_and_stands_in_report_charts_and_final_metrics(tmp_path: Path) -> None:
    paths = create_run("logs", runs=tmp_path)
    file = paths.metrics(RANK)
    file.parent.mkdir(parents=True)
    done = logged(SCRIPT, str(file))
    assert done.stdout == "[]\n", "it loads no library"
    assert done.stderr == "headrace.log: loss is nan at step 1000; charts leave such values out\n", "once"
    assert len(file.read_text().splitlines()) <= 2 * 10, "a record a second, not one a value"
    run = Run(paths)
    assert not run.damage
    values = {value.name: value for value in report(run).values}
    assert {name: value.count.value for name, value in values.items()} == {"loss": 1000, "accuracy": 1000}
    loss = values["loss"]
    assert (loss.last.value, loss.min.value, loss.max.value, loss.mean.value) == (1.0, 1.0, 1000.0, 500.5)
    assert loss.programs == ("dnn/algo-1[3]",)
    newest = run.values.seconds()
    assert (newest["loss"].last, newest["loss"].step, newest["accuracy"].last) == (1.0, 999, 999.0)
    last = run.values.last()
    assert math.isnan(last["loss"]), "a grid does not rank it by what came before"
    assert last["accuracy"] == 999.0


@pytest.mark.promise("metrics", "values of `headrace.log` are counted once; report, charts and final metrics have them")
def test_outside_a_job_it_only_checks_its_arguments(tmp_path: Path) -> None:
    assert logged(SCRIPT, "").stderr == ""
    assert list(tmp_path.iterdir()) == []
    headrace.log({"loss": 1})
    with pytest.raises(TypeError, match="'loss' must be a number, not 'much'"):
        headrace.log({"loss": "much"})
    with pytest.raises(TypeError, match="the name of a metric must be a text that is not empty, not 7"):
        headrace.log({7: 1.0})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="'loss' is beyond what a double holds"):
        headrace.log({"loss": 10**400})
    with pytest.raises(TypeError, match="takes a dict of numbers by name"):
        headrace.log([("loss", 1.0)])  # type: ignore[arg-type]
    for step in ("6", True, 1.5, float("nan"), 2**63, [1], np.zeros(2)):
        with pytest.raises(TypeError, match="step must be a whole number"):
            headrace.log({"loss": 1}, step=step)  # type: ignore[arg-type]


def test_steps_of_numpy_and_whole_floats_are_steps(tmp_path: Path) -> None:
    script = "import headrace, numpy as np\n"
    script += "for step in (np.int64(3), 4.0, np.float32(5)): headrace.log({str(step): 1.0}, step=step)\n"
    assert logged(script, str(tmp_path / "metrics")).stderr == ""
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics").read_text().splitlines()]
    assert steps == [3, 4, 5]
    assert {type(step) for step in steps} == {int}


def test_a_loss_that_has_its_graph_is_logged_without_a_word(tmp_path: Path) -> None:
    script = "class Loss:\n    def detach(self): return 2.5\nimport headrace\nheadrace.log({'loss': Loss()}, step=1)\n"
    done = logged(script, str(tmp_path / "metrics"))
    assert done.stderr == ""
    assert "2.5" in (tmp_path / "metrics").read_text()

"""A run is in TensorBoard, MLflow and Weights & Biases as it is in its record, once, however often it is exported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_runs import START, feed, host, loader, rank, record

from headrace.runs import Run, Stream, ValueNotFinite, ValueSecond

LOSS = {1: 0.9, 7: 0.5, 40: float("nan"), 90: 0.25}
REQUEST = {"HyperParameters": {"lr": "0.1", "optimizer": '"adam"', "nested": '{"a": [1, 2]}'}}
"""As CreateTrainingJob has them."""


def values(name: str, stream: str, *, steps: bool = True) -> list[ValueSecond | ValueNotFinite]:
    found: list[ValueSecond | ValueNotFinite] = []
    for second, (step, value) in enumerate(LOSS.items()):
        where = {"t": START + 3 + second, "name": name, "stream": stream, "step": step if steps else None, "count": 2}
        if value != value:
            found.append(ValueNotFinite(last="nan", **where))
        else:
            found.append(ValueSecond(last=value, low=value, high=value, total=2 * value, **where))
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of two ranks, which print `acc+` both, and of which the first one logs its loss."""
    metrics = {
        rank(0): [*loader(0.4), *values("loss", "0")],
        rank(1): loader(0.4, seed=1),
        Stream("data_group", "algo-1", "feed"): feed(0.8, 0.0),
        Stream("dnn_group", "algo-2", "host"): [*host(0.5), *values("acc+", "0", steps=False), *values("acc+", "1")],
        Stream("data_group", "algo-1", "host"): host(0.9),
    }
    run = record(tmp_path / "home" / "runs", "digits", metrics)
    run.paths.request.write_text(json.dumps(REQUEST))
    return run


def twice(run: Run, to: str, read: str, into: Path, **variables: str) -> dict[str, list[tuple[int, float]]]:
    """Exports a run twice, and returns what the tool has then: printed by `read`, a script."""
    script = f"""
import json, sys
from headrace.insight.export import export
from headrace.runs import Run, RunPaths
from pathlib import Path
for _ in range(2):
    export(Run(RunPaths(Path(sys.argv[1]))), {to!r}, sys.argv[2], None)
{read}
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(run.paths.root), str(into)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **variables}, cwd=into, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return {name: [tuple(pair) for pair in pairs] for name, pairs in json.loads(done.stdout.splitlines()[-1]).items()}


def expected(run: Run) -> dict[str, list[tuple[int, float]]]:
    """Steps and values that must be there; of the charts and the report one of each."""
    from headrace.insight.export import exported

    known = exported(run)
    assert known.parameters == {
        "lr": 0.1, "optimizer": "adam", "nested": '{"a": [1, 2]}', "data_group.hosts": 1, "dnn_group.hosts": 1,
    }  # fmt: skip
    series = {name: [(step, value) for _, step, value in points] for name, points in known.series.items()}
    assert [step for step, _ in series["loss"]] == list(LOSS)
    assert [step for step, _ in series["acc+/algo-2/0"]] == [2, 4, 6, 8], "without steps: how many there were"
    assert {"headrace/step_time/train", "headrace/cpu/dnn_group", "headrace/report/data_wait"} <= series.keys()
    assert series["headrace/report/dnn_group/cpu"][0][1] == pytest.approx(50, abs=1)
    return series


def same(found: list[tuple[int, float]], known: list[tuple[int, float]]) -> bool:
    return [step for step, _ in found] == [step for step, _ in known] and [value for _, value in found] == (
        pytest.approx([value for _, value in known], rel=1e-6, nan_ok=True)
    )


READ_TENSORBOARD = """
import struct
from tensorboard.compat.proto.event_pb2 import Event
found = {}
for file in Path(sys.argv[2]).glob("*/events*.headrace"):
    data, place = file.read_bytes(), 0
    while place < len(data):
        size, = struct.unpack_from("<Q", data, place)
        event = Event.FromString(data[place + 12 : place + 12 + size])
        place += 16 + size
        for value in event.summary.value:
            if not value.metadata.plugin_data.plugin_name:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
assert "tensorflow" not in sys.modules
print(json.dumps(found))
"""
READ_MLFLOW = """
import mlflow
client = mlflow.MlflowClient(sys.argv[2])
[run] = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
assert run.data.params["lr"] == "0.1" and run.info.status == "FINISHED", run
history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
print(json.dumps({name: [(point.step, point.value) for point in points] for name, points in history.items()}))
"""
READ_WANDB = """
import struct
from wandb.proto.wandb_internal_pb2 import Record
[file] = Path(sys.argv[2]).glob("wandb/offline-run-*/*.wandb")
data, place, record, found, steps = file.read_bytes(), 7, b"", {}, {}
while place + 7 <= len(data):
    if 32768 - place % 32768 < 7:
        place += 32768 - place % 32768
        continue
    size, kind = struct.unpack_from("<HB", data, place + 4)
    record += data[place + 7 : place + 7 + size]
    place += 7 + size
    if kind in (1, 4):
        message, record = Record.FromString(record), b""
        if message.metric.step_metric:
            steps[message.metric.name or message.metric.glob_name] = message.metric.step_metric
        if message.WhichOneof("record_type") == "history":
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in message.history.item}
            for name, value in row.items():
                axis = steps.get(name, steps["headrace/*"] if name.startswith("headrace/") else "")
                if axis in row and axis != name:
                    found.setdefault(name, []).append((row[axis], float(value)))
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("to", "read", "variables"),
    [
        pytest.param("tensorboard", READ_TENSORBOARD, {}, marks=pytest.mark.needs("tensorboard")),
        pytest.param("mlflow", READ_MLFLOW, {"MLFLOW_ALLOW_FILE_STORE": "true"}, marks=pytest.mark.needs("mlflow")),
        pytest.param("wandb", READ_WANDB, {"WANDB_MODE": "offline"}, marks=pytest.mark.needs("wandb")),
    ],
    ids=["tensorboard", "mlflow", "wandb"],
)
@pytest.mark.promise("export", "an export has each value of a run once; another one takes its place")
def test_a_tool_has_each_value_of_a_run_once_and_another_export_takes_its_place(
    run: Run, tmp_path: Path, to: str, read: str, variables: dict[str, str]
) -> None:
    into = tmp_path / "into"
    beside = into / run.id / "events.out.tfevents.1.mine"  # of somebody else
    beside.parent.mkdir(parents=True)
    beside.touch()
    known, found = expected(run), twice(run, to, read, into, **variables)
    renamed = {re.sub(r"[+,]", "_", name) if to == "mlflow" else name: points for name, points in known.items()}
    assert found.keys() == renamed.keys()
    assert [name for name, points in renamed.items() if not same(found[name], points)] == []
    assert beside.exists()


def test_names_that_a_tool_does_not_take_stay_apart() -> None:
    from headrace.insight.export import Point, _names

    series = {name: [Point(0.0, 0, 0.0)] for name in ("acc+", "acc*", "acc_", "loss")}
    names = _names(series, lambda letter: letter if letter.isalnum() or letter == " " else "_")
    assert names == {"acc+": "acc_", "acc*": "acc_ 2", "acc_": "acc_ 3", "loss": "loss"}


@pytest.mark.promise("export", "a library that is missing is named with the command that installs it")
@pytest.mark.parametrize("to", ["tensorboard", "mlflow", "wandb"])
def test_a_library_that_is_missing_is_named_with_what_installs_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    from headrace.errors import UsageError
    from headrace.insight.export import export

    monkeypatch.setitem(sys.modules, to, None)
    for name in [name for name in sys.modules if name.startswith(f"{to}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=f"the Python package {to} is not installed") as caught:
        export(run, to, None, None)
    assert f"[{to}]" in caught.value.hint

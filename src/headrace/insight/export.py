"""A run in what people use already: TensorBoard, MLflow or Weights & Biases, written by their own libraries.

A run is read once, as parameters, tags and series of numbers (`exported`), and each tool has one writer of these. A
second export takes the place of the first: the writers know their own by the run's id. What people have put beside it
stays.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import HeadraceError, UsageError
from headrace.insight import charts
from headrace.insight.charts import MOST_POINTS, Grid
from headrace.insight.figures.columns import Columns
from headrace.insight.run_report import report
from headrace.install_hint import install_hint
from headrace.runs import MetricFollower, Run, Status, Stream, ValueNotFinite, ValueSecond
from headrace.runs.describe import describe

OWN = "headrace/"
"""What the names of headrace's own figures begin with."""
_SUFFIX = ".headrace"
_TAG = "headrace.run_id"
_MLFLOW_NAME = " _-./:"  # what the name of a metric may have beside letters and digits
_MLFLOW_BATCH, _MLFLOW_PARAMETERS, _MLFLOW_VALUE = 1000, 100, 6000


class Point(NamedTuple):
    """One value: when (seconds since the epoch), at which step, and which."""

    t: float
    step: int
    value: float


class Exported(NamedTuple):
    """A run as these tools see one.

    Attributes:
        run_id, job_name, status: which run, and how it is.
        start, end: seconds since the epoch; `end` is None while it goes on.
        parameters: hyperparameters, decoded, and what it ran on.
        tags: what else is known of it, as texts.
        series: points by name, in the order of time. headrace's own begin with `OWN`, and their steps are seconds since
            `start`; those of the job's metrics are steps of the training.
    """

    run_id: str
    job_name: str
    status: Status
    start: float
    end: float | None
    parameters: dict[str, object]
    tags: dict[str, str]
    series: dict[str, list[Point]]

    @property
    def points(self) -> int:
        """How many values all series have."""
        return sum(map(len, self.series.values()))


def exported(run: Run) -> Exported:
    """Reads a run. Raises OSError or msgspec.DecodeError when its header cannot be read."""
    records = list(MetricFollower(run.paths, run.on_damage).poll())
    columns = Columns(records)
    known = report(run, columns)
    start = min(known.created, columns.first) if columns.records else known.created
    last = max(start, columns.last) if columns.records else start
    series = _values([(stream, each) for stream, each in records if isinstance(each, ValueSecond | ValueNotFinite)])
    grid = Grid.over(start, last, MOST_POINTS)
    for chart in charts.metrics(run.id, columns, grid, last).charts:
        for line in () if chart.name.startswith("value:") else chart.lines:
            points = zip(grid.times, line.values, strict=True)
            name = f"{OWN}{chart.name}/{line.name}"
            series[name] = [Point(t, round(t - start), value) for t, value in points if value is not None]
    end = known.ended or last
    for (name, group), figure in known.figures().items():
        if figure.value is not None:
            point = Point(end, round(end - start), float(figure.value))
            series["/".join(filter(None, (f"{OWN}report", group, name)))] = [point]
    texts = describe(run).get("HyperParameters")
    parameters = {name: _decoded(text) for name, text in texts.items()} if isinstance(texts, dict) else {}
    hosts = {f"{group.name}.hosts": len(group.hosts) for group in known.groups}
    cause = known.cause.reason if known.cause is not None else ""
    tags = {
        "run_id": run.id, "job_name": known.job_name, "engine": known.engine, "status": known.status.value,
        "verdict": known.verdict.name.value, "cause": cause, "version": known.headrace_version,
    }  # fmt: skip
    tags = {f"headrace.{name}": text for name, text in tags.items() if text}
    return Exported(run.id, known.job_name, known.status, start, known.ended, parameters | hosts, tags, series)


def _values(records: list[tuple[Stream, ValueSecond | ValueNotFinite]]) -> dict[str, list[Point]]:
    """Returns the job's own metrics: by name, and by program where several have one. A step that nobody gave is the
    number of values so far, as in a grid's early stop."""
    programs: dict[str, dict[str, list[ValueSecond | ValueNotFinite]]] = {}
    for stream, record in records:
        programs.setdefault(record.name, {}).setdefault(f"{stream.host}/{record.stream}", []).append(record)
    series = {}
    for name, streams in programs.items():
        for program, seconds in streams.items():
            seconds.sort(key=lambda second: second.t)
            counts = itertools.accumulate(second.count for second in seconds)
            series[name if len(streams) == 1 else f"{name}/{program}"] = [
                Point(second.t, count if second.step is None else second.step, float(second.last))
                for second, count in zip(seconds, counts, strict=True)
            ]
    return series


def _decoded(text: object) -> object:
    """Returns a hyperparameter as a number, bool or text."""
    try:
        value = json.loads(str(text))
    except ValueError:
        return str(text)
    return value if isinstance(value, bool | int | float | str) else str(text)


def _library(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise UsageError(f"the Python package {extra} is not installed", install_hint(extra)) from error


def to_tensorboard(run: Exported, into: str | None, project: str | None) -> str:
    """Writes event files. Returns what shows them."""
    if project is not None:
        raise UsageError("TensorBoard has no projects", "leave out --project; --into names the folder of its logs")
    records: Any = _library("tensorboard.summary.writer.record_writer", "tensorboard")  # imports no TensorFlow
    protos: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
    summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    hparams: Any = importlib.import_module("tensorboard.plugins.hparams.summary_v2")
    texts: Any = importlib.import_module("tensorboard.plugins.text.summary_v2")
    logs = Path(into or "tensorboard").absolute()
    folder = logs / run.run_id
    folder.mkdir(parents=True, exist_ok=True)
    earlier = list(folder.glob(f"events.out.tfevents.*{_SUFFIX}"))
    unfinished = folder / f".{os.getpid()}{_SUFFIX}"
    with unfinished.open("wb") as file:
        writer = records.RecordWriter(file)
        notes = "\n".join(f"* {name}: {text}" for name, text in run.tags.items())
        first = (hparams.hparams_pb(run.parameters, trial_id=run.run_id), texts.text_pb("headrace/run", notes))
        writer.write(protos.Event(wall_time=run.start, file_version="brain.Event:2").SerializeToString())
        for summary in first:
            writer.write(protos.Event(wall_time=run.start, summary=summary).SerializeToString())
        for name, points in run.series.items():
            for t, step, value in points:
                summary = summaries.Summary(value=[summaries.Summary.Value(tag=name, simple_value=value)])
                writer.write(protos.Event(wall_time=t, step=step, summary=summary).SerializeToString())
    for old in earlier:
        old.unlink()
    unfinished.rename(folder / f"events.out.tfevents.{time.time_ns()}{_SUFFIX}")
    return f"tensorboard --logdir {logs}"


def to_mlflow(run: Exported, into: str | None, project: str | None) -> str:
    """Makes a run of an experiment, and deletes those of earlier exports. Returns where it is."""
    mlflow: Any = _library("mlflow", "mlflow")
    client = mlflow.MlflowClient(tracking_uri=into)
    name = project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.job_name
    try:
        experiment = client.get_experiment_by_name(name)
    except ModuleNotFoundError as error:  # the extra has what speaks with a server, and no database
        hint = "pip install mlflow, which keeps runs in a database of this machine; or --into the address of a server"
        raise UsageError(f"{client.tracking_uri} needs the Python package {error.name}", hint) from error
    number = client.create_experiment(name) if experiment is None else experiment.experiment_id
    earlier = list(client.search_runs([number], f"tags.`{_TAG}` = '{run.run_id}'"))
    kept = {key: text for old in earlier for key, text in old.data.tags.items() if not key.startswith("mlflow.run")}
    run_of = client.create_run(number, round(1000 * run.start), kept | run.tags, run.run_id).info.run_id
    parameters = [mlflow.entities.Param(key, str(value)[:_MLFLOW_VALUE]) for key, value in run.parameters.items()]
    for index in range(0, len(parameters), _MLFLOW_PARAMETERS):
        client.log_batch(run_of, params=parameters[index : index + _MLFLOW_PARAMETERS])
    names = _names(run.series, lambda letter: letter if letter.isalnum() or letter in _MLFLOW_NAME else "_")
    metrics = [
        mlflow.entities.Metric(names[key], value, round(1000 * t), step)
        for key, points in run.series.items()
        for t, step, value in points
    ]
    for index in range(0, len(metrics), _MLFLOW_BATCH):
        client.log_batch(run_of, metrics=metrics[index : index + _MLFLOW_BATCH])
    if run.end is not None:
        status = {Status.COMPLETED: "FINISHED", Status.STOPPED: "KILLED"}.get(run.status, "FAILED")
        client.set_terminated(run_of, status, round(1000 * run.end))
    for old in earlier:  # when the new one is whole
        client.delete_run(old.info.run_id)
    return f"run {run_of} of the experiment {name}, {client.tracking_uri}"


def _names(series: dict[str, list[Point]], allowed: Callable[[str], str]) -> dict[str, str]:
    """Returns names in which each character is allowed, each for one series."""
    names: dict[str, str] = {}
    for name in series:
        text = plain = "".join(map(allowed, name))
        number = 1
        while text in names.values():
            number += 1
            text = f"{plain} {number}"
        names[name] = text
    return names


def to_wandb(run: Exported, into: str | None, project: str | None) -> str:
    """Makes a run whose id is headrace's, so that another export overwrites it. Returns where it is."""
    wandb: Any = _library("wandb", "wandb")
    root = Path(into or os.environ.get("WANDB_DIR") or ".").absolute()
    root.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        console="off", silent=True, save_code=False, disable_git=True, disable_code=True, x_disable_stats=True,
        x_disable_meta=True, x_disable_machine_info=True,
    )  # fmt: skip
    earlier = [*root.glob(f"wandb/offline-run-*-{run.run_id}"), *root.glob(f"wandb/run-*-{run.run_id}")]
    name = project or os.environ.get("WANDB_PROJECT") or run.job_name
    made = wandb.init(
        project=name, id=run.run_id, name=run.run_id, dir=str(root), config={**run.parameters, **run.tags},
        settings=settings,
    )  # fmt: skip
    try:
        made.define_metric(f"{OWN}seconds", hidden=True)
        made.define_metric(f"{OWN}*", step_metric=f"{OWN}seconds")
        rows: dict[float, dict[str, float]] = {}
        for key, points in run.series.items():
            own = key.startswith(OWN)
            axis = f"{OWN}seconds" if own else f"{key} step"
            if not own:
                made.define_metric(axis, hidden=True)
                made.define_metric(key, step_metric=axis)
            for t, step, value in points:
                rows.setdefault(t, {"_timestamp": t}).update({key: value, axis: step})
        for _, row in sorted(rows.items()):
            made.log(row)
        folder = Path(made.dir).parent
        address = f"wandb sync {folder}" if folder.name.startswith("offline-") else str(made.url)
        made.finish(exit_code=0 if run.status is Status.COMPLETED or run.end is None else 1)
    finally:
        wandb.teardown()
    for old in earlier:  # when the new one is whole
        if old != folder:
            shutil.rmtree(old)
    return address


WRITERS: dict[str, Callable[[Exported, str | None, str | None], str]] = {
    "tensorboard": to_tensorboard,
    "mlflow": to_mlflow,
    "wandb": to_wandb,
}


def export(run: Run, to: str, into: str | None, project: str | None) -> tuple[Exported, str]:
    """Writes a run into a tool.

    Args:
        run: which.
        to: a key of `WRITERS`.
        into: folder, or address of MLflow's server; None for the tool's own choice.
        project: W&B's project, or MLflow's experiment; None for the tool's own choice, else the job's name.

    Returns:
        What was written, and where it can be looked at.

    Raises:
        UsageError: its library is not installed.
        HeadraceError: the library refused.
        OSError, msgspec.DecodeError: the run's header cannot be read.
    """
    what = exported(run)
    try:
        return what, WRITERS[to](what, into, project)
    except (HeadraceError, OSError):
        raise
    except Exception as error:  # the boundary to a library, whose errors have no common base
        raise HeadraceError(f"{to} refused the run: {type(error).__name__}: {error}") from error

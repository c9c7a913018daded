"""The record of one execution, on disk: events, metrics and logs, written while the job runs and read at any time.

What shows or judges a job reads this and nothing else, so it works after the job, without its engine and offline. What
reads is imported when it is first used: an agent only writes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from headrace.feed_metrics import LoaderSecond, ValueNotFinite, ValueSecond, WorkerSecond
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.events import (
    ArtefactsStored,
    CheckpointsRestored,
    Clash,
    Event,
    RequirementsInstalled,
    Status,
)
from headrace.runs.log_lines import LogFollower, LogLine, Selector, parse_selector
from headrace.runs.metric_records import GpuUse, HostSecond, Metric, ServiceSecond
from headrace.runs.run_paths import RunPaths, Stream, runs_dir
from headrace.runs.store import (
    RunHeader,
    adopt,
    create_run,
    give_to_engine,
    process_start_time,
    read_header,
    read_plan,
    supervisor_alive,
)
from headrace.runs.tail import Damage
from headrace.runs.writers import LOG_CAP_BYTES, EventWriter, LogWriter, MetricWriter

if TYPE_CHECKING:
    from headrace.runs.reader import (
        EndOfRun,
        EventFollower,
        MetricFollower,
        Run,
        Value,
        ValueFollower,
        list_runs,
        of_kind,
    )
    from headrace.runs.state import Program, RunState, state_of

_READING = (
    "EndOfRun",
    "EventFollower",
    "MetricFollower",
    "Program",
    "Run",
    "RunState",
    "Value",
    "ValueFollower",
    "list_runs",
    "of_kind",
    "state_of",
)

__all__ = [
    "LOG_CAP_BYTES",
    "ArtefactsStored",
    "Cause",
    "CauseKind",
    "CheckpointsRestored",
    "Clash",
    "Damage",
    "EndOfRun",
    "Event",
    "EventFollower",
    "EventWriter",
    "GpuUse",
    "HostSecond",
    "LoaderSecond",
    "LogFollower",
    "LogLine",
    "LogWriter",
    "Metric",
    "MetricFollower",
    "MetricWriter",
    "Program",
    "RequirementsInstalled",
    "Run",
    "RunHeader",
    "RunPaths",
    "RunState",
    "Selector",
    "ServiceSecond",
    "Status",
    "Stream",
    "Value",
    "ValueFollower",
    "ValueNotFinite",
    "ValueSecond",
    "WorkerSecond",
    "adopt",
    "create_run",
    "give_to_engine",
    "list_runs",
    "of_kind",
    "parse_selector",
    "process_start_time",
    "read_header",
    "read_plan",
    "runs_dir",
    "state_of",
    "supervisor_alive",
]


def __getattr__(name: str) -> object:
    if name in _READING:
        return getattr(importlib.import_module(f"{__name__}.reader"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

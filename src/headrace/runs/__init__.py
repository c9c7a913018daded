"""The record of one execution, on disk: events, metrics and logs, written while the job runs and read at any time.

What shows or judges a job reads this and nothing else, so it works after the job, without its engine and offline.
"""

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
from headrace.runs.reader import EndOfRun, EventFollower, MetricFollower, Run, list_runs, of_kind
from headrace.runs.run_paths import RunPaths, Stream, runs_dir
from headrace.runs.state import Program, RunState, state_of
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

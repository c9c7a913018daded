"""Where things lie in a run's directory.

    <runs>/<run id>/
        started                               who has started it: see `own_runs`
        run.json                              header: written once by the engine (see `RunHeader`)
        job.yaml, job.json                    the job as the user wrote it, and as it was understood
        request.json                          the same in the words of a CreateTrainingJob request
        plan.json                             the launch plan
        code/                                 snapshot of source_dir
        engine/                               the engine's own: orders for its processes, and their logs
        events/<writer>.jsonl                 one writer each: `engine`, or a host's name
        metrics/<group>/<host>/<stream>.jsonl one line a second: a rank's number, `host`, or `values` (`HOST`, `VALUES`)
        logs/<group>/<host>/<stream>.log      a rank's number, `feed` or `agent`
        hosts/<host>/                         the instance's /opt/ml
        output/                               model.tar.gz, output.tar.gz, unless the job names another place

Files are append-only and have one writer. Group names may hold any character, so path components are
percent-encoded (`component`). A run id is `<job name>-<UTC time>-<4 hex>`; a run is found by its id, or by its
job name, which means the newest run of that name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from headrace.home import RUNS, home_dir
from headrace.name_order import by_number

ENGINE = "engine"
"""Writer of the events of an engine's supervisor, and folder of what the engine itself keeps."""
AGENT = "agent"
"""Log stream of a host's agent: its own notes."""
HOST = "host"
"""Stream of the metrics that a host's agent writes about the host: `HostSecond`."""
PLATFORM = "platform"
"""Stream of the metrics that the platform of a host measured: `PlatformMinute`."""
VALUES = "values"
"""Stream of the metrics that a host's agent found in the output of its programs: `ValueSecond`."""


def runs_dir() -> Path:
    """Returns the directory of all runs: $HEADRACE_HOME/runs, by default ~/.headrace/runs. Raises UsageError."""
    return home_dir() / RUNS


def component(name: str) -> str:
    """Encodes a group or host name as one path component; `.` and `..` included."""
    encoded = quote(name, safe="")
    return encoded.replace(".", "%2E") if set(encoded) <= {"."} else encoded


def decode(name: str) -> str:
    """Reverses `component`."""
    return unquote(name)


@functools.total_ordering
@dataclass(frozen=True)
class Stream:
    """Address of one program's output: ``group/host[name]``. Sorted by number: algo-9 before algo-10.

    Attributes:
        group: instance group name.
        host: host name.
        name: global rank as a number (a plain script is rank 0 of its own), ``feed`` or ``agent``.
    """

    group: str
    host: str
    name: str

    def __str__(self) -> str:
        return f"{self.group}/{self.host}[{self.name}]"

    def __lt__(self, other: Stream) -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[object, ...]:
        return self.group, by_number(self.host), by_number(self.name), self.host, self.name


@dataclass(frozen=True)
class RunPaths:
    """Paths inside one run's directory."""

    root: Path

    @property
    def id(self) -> str:
        """The run id."""
        return self.root.name

    @property
    def header(self) -> Path:
        """run.json."""
        return self.root / "run.json"

    @property
    def plan(self) -> Path:
        """plan.json."""
        return self.root / "plan.json"

    @property
    def job(self) -> Path:
        """job.json."""
        return self.root / "job.json"

    @property
    def request(self) -> Path:
        """request.json."""
        return self.root / "request.json"

    @property
    def code(self) -> Path:
        """Snapshot of the source directory, which no program changes: every host has a copy of its own."""
        return self.root / "code"

    @property
    def output(self) -> Path:
        """Where model and output go when the job names no other place."""
        return self.root / "output"

    @property
    def engine(self) -> Path:
        """What the engine and its processes read, and their logs."""
        return self.root / ENGINE

    def events(self, writer: str) -> Path:
        """Event file of one writer."""
        return self.root / "events" / f"{component(writer)}.jsonl"

    def log(self, stream: Stream) -> Path:
        """Log file of one program."""
        return self.root / "logs" / component(stream.group) / component(stream.host) / f"{component(stream.name)}.log"

    def metrics(self, stream: Stream) -> Path:
        """Metric file of one rank, or of a host (stream name `HOST` or `VALUES`)."""
        directory = self.root / "metrics" / component(stream.group) / component(stream.host)
        return directory / f"{component(stream.name)}.jsonl"

    def host(self, host: str) -> Path:
        """Base directory (/opt/ml) of one host."""
        return self.root / "hosts" / component(host)

"""What a run's files say of its job, as far as its figures need it, and what of the files is not there at all.

plan.json has groups, budget, completion groups and metric definitions.
"""

from __future__ import annotations

import errno

import msgspec

from headrace.catalog.prices import DEFAULT_REGION
from headrace.runs import Damage, Run, RunPaths, RunState, read_plan


class PlannedGroup(msgspec.Struct, frozen=True):
    """One instance group."""

    name: str
    instance_type: str = ""
    hosts: tuple[str, ...] = ()
    entry_point: bool = True
    processes_per_host: int = 0
    feed_executors: int = 0


class PlannedHost(msgspec.Struct, frozen=True):
    """One host. `cpus`: those that it may use; empty for all."""

    name: str
    cpus: tuple[int, ...] = ()

    def shares_with(self, other: PlannedHost) -> bool:
        """Returns whether two hosts of one machine may use the same CPU."""
        return not (self.cpus and other.cpus) or not set(self.cpus).isdisjoint(other.cpus)


class PlannedBudget(msgspec.Struct, frozen=True):
    """The budget."""

    max_cost: float
    region: str


class PlannedMetric(msgspec.Struct, frozen=True):
    """One metric definition."""

    name: str


class PlannedRun(msgspec.Struct, frozen=True):
    """The job without what concerns its costs."""

    groups: tuple[PlannedGroup, ...] = ()
    hosts: tuple[PlannedHost, ...] = ()
    completion_groups: tuple[str, ...] = ()
    metric_definitions: tuple[PlannedMetric, ...] = ()


class PlannedJob(PlannedRun, frozen=True):
    """The job. `region`: where its instances are, empty where they are none of AWS's."""

    budget: PlannedBudget | None = None
    region: str = ""

    def priced_in(self, region: str | None) -> tuple[str, str]:
        """Returns the region whose prices are taken, and a note when no region was named.

        Args:
            region: as asked for; None for where the run is, else that of the budget, else us-east-1.
        """
        if region is not None:
            return region, ""
        if self.region:
            return self.region, ""
        if self.budget is not None:
            return self.budget.region, ""
        return DEFAULT_REGION, f"the job names no region: prices of {DEFAULT_REGION}"


def planned_job(run: Run) -> tuple[PlannedJob, str]:
    """Reads what plan.json says.

    Returns:
        As much of it as can be read, and why the rest cannot: then nothing is known of prices.
    """
    try:
        return read_plan(run.paths, PlannedJob), ""
    except (OSError, msgspec.DecodeError) as error:
        why = why_unread(error)
    unread = f"plan.json cannot be read, so the instance types and what the run costs are not known: {why}"
    try:
        return PlannedJob(**msgspec.structs.asdict(read_plan(run.paths, PlannedRun))), unread
    except (OSError, msgspec.DecodeError):
        return PlannedJob(), unread


_FOLDERS = {
    "events": "when it started, what happened, how it ended and what it cost are not known",
    "metrics": "there are no figures of its steps and hosts",
    "logs": "there are no lines of its programs",
}
_WORDS = {
    errno.ENOENT: "the file is missing",
    errno.EISDIR: "there is a folder in its place",
    errno.ENOTDIR: "a part of its path is a file",
    errno.EACCES: "this user may not read it",
}


def absent(paths: RunPaths, state: RunState) -> list[Damage]:
    """Returns the folders that a run has lost: those that a run with programs always has.

    A run without events may have had programs, too; one that goes on may not have written anything yet.

    Args:
        paths: the run's directory.
        state: what its events say.
    """
    if not state.finished or not paths.root.is_dir():
        return []
    gone = [name for name in _FOLDERS if not (paths.root / name).is_dir()]
    if "events" not in gone and not state.programs:
        return []
    return [Damage(str(paths.root / name), 0, f"the folder is missing: {_FOLDERS[name]}") for name in gone]


def why_unread(error: Exception) -> str:
    """Returns in words why a file cannot be read: an OSError, or a decoder's words for what is in it."""
    if isinstance(error, OSError):
        return _WORDS.get(error.errno or 0, error.strerror or str(error))
    return f"it holds no complete record ({error})"

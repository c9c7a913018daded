"""What a run leaves on this machine outside its record, and its removal: by its supervisor at the end, by the caller
when the supervisor was killed, and by the next start of any run when there was no caller, or all were killed together.

Control groups have a sweep of their own (`limits.cgroups`): they may lie where no run can be read.
"""

from __future__ import annotations

from headrace.hosting.inputs import virtual_environments
from headrace.hosting.inputs.channel_area import channel_area, remove_channels
from headrace.hosting.inputs.requirements import ENVIRONMENTS, environments_dir
from headrace.hosting.supervision.scratch_dir import remove_scratch, sweep_scratch
from headrace.instance.lifeline import RUN_ID
from headrace.own_runs import started_here
from headrace.processes.process_table import read_proc
from headrace.runs import RunPaths, list_runs


def remove_leftovers(paths: RunPaths) -> None:
    """Removes the temporary files and channels of a run that has ended, and environments that nobody makes any more."""
    remove_scratch(paths.id)
    remove_channels(paths)
    for folder in (environments_dir(), paths.root / ENVIRONMENTS):
        virtual_environments.sweep(folder)


def sweep_leftovers() -> None:
    """Removes what runs of this user have left whose every process was killed."""
    virtual_environments.sweep(environments_dir())
    sweep_scratch()
    for run in list_runs():
        if channel_area(run.paths).is_dir() and started_here(run.paths.root) and not run.supervised:
            remove_leftovers(run.paths)


def is_of_run(pid: int, run_id: str) -> bool:
    """Tells whether a process of this machine has the mark of a run. One that has ended has none."""
    try:
        return f"{RUN_ID}={run_id}".encode() in read_proc(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return False

"""Reads the report of a grid of this machine, live or after its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.grid.controller.grid_lease import has_controller
from headrace.grid.journal.grid_record import AttemptRecord
from headrace.grid.journal.journal_file import journal_path
from headrace.grid.journal.read_grid import read_grid
from headrace.grid.load_grid import read_grid_file
from headrace.grid.report.best_lines import Objective
from headrace.grid.report.grid_report import GridReport, report_grid
from headrace.grid.report.line_result import RunFigures
from headrace.grid.report.run_figures import run_figures
from headrace.job.problems.finding import suggestion
from headrace.own_runs import started_here

FOREIGN = "the grid was not started here by you: its journal is only read, and what it says is somebody else's word"


def read_report(
    name: str,
    objective: Objective | None = None,
    figures: Callable[[AttemptRecord], RunFigures | None] = run_figures,
) -> GridReport:
    """Returns the report of a grid.

    Args:
        name: of the grid.
        objective: what it is run for; None: what its file says now.
        figures: reads what the run of an attempt measured and cost; None when it has no record here.

    Raises:
        UsageError: there is no such grid.
        StorageError: its journal cannot be read.
    """
    record = read_grid(name)
    notes: list[str] = []
    foreign = not started_here(journal_path(name).parent)
    if foreign:  # it names files, too
        notes.append(FOREIGN)
    elif objective is None:
        try:
            objective = objective_in(Path(record.file))
        except HeadraceError as error:
            notes.append(f"{record.file} cannot be read now: what the grid is run for is not known ({error.message})")
    if record.ended is None and not foreign and not has_controller(journal_path(name).parent):
        notes.append(f"no process controls the grid: nothing more begins until headrace grid run {record.file}")
    found = report_grid(record, objective, figures, time.time())
    return msgspec.structs.replace(found, notes=(*notes, *found.notes))


def without_objective(attempt: AttemptRecord, metric: str) -> str:
    """Returns what to say of a run that has completed without the objective's metric; empty when it has it, or has no
    record here.

    Args:
        attempt: whose run it is.
        metric: of the objective.
    """
    found = run_figures(attempt)
    if found is None or metric in found.metrics:
        return ""
    hint = suggestion(metric, sorted(found.metrics)) if found.metrics else "it has no metric at all"
    return f"it has completed without the objective's metric {metric!r}: no line can be ranked so; {hint}"


def objective_in(path: Path) -> Objective | None:
    """Returns the objective of a grid's file; None when it has none.

    Raises:
        UsageError, JobInvalid: the file is not there, or is wrong.
    """
    given = read_grid_file(path).objective
    return None if given is None else Objective(given.metric, given.goal)

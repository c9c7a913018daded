"""Grids for tests: a job file with one channel, and a grid's file beside it."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import JobInvalid
from headrace.grid.grid_file import GridFile
from headrace.grid.load_grid import Grid, load_grid

JOB = """
entry_point: train.py
source_dir: code
hyperparameters: {epochs: 1}
instance_groups:
  - {name: data_group, type: ml.c5.xlarge, count: 1}
  - {name: dnn_group, type: ml.g5.xlarge, count: 1}
inputs: {train: s3://bucket/all}
"""
__all__ = ["JOB", "GridFile", "grid_of", "problems_of"]


def grid_of(folder: Path, lines: str, job: str = JOB, more: str = "") -> Grid:
    """Writes a grid whose `lines` are given as YAML, and reads it; `more` are further lines of its file."""
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").write_text("")
    (folder / "job.yaml").write_text(job)
    file = folder / "array.yaml"
    file.write_text(f"name: big\njob: job.yaml\nlines: {lines}\n{more}")
    return load_grid(file)


def problems_of(folder: Path, lines: str, job: str = JOB) -> list[str]:
    """Returns what is wrong with a grid, each problem as a text without the folder."""
    try:
        grid_of(folder, lines, job)
    except JobInvalid as error:
        return [str(problem).replace(f"{folder}/", "") for problem in error.problems]
    return []

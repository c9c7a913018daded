"""Grids for AWS Batch: the one of the seed, four regions, and what it is exported to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.grid.batch.submit_array import BatchExport, export_batch
from headrace.grid.load_grid import load_grid
from headrace.grid.plan_grid import plan_grid
from headrace.job import job_document

SEED = """\
us-east-1,s3://ragab-ml/imagenet2012/tf-imagenet/resized
us-west-2,s3://ragab-ml-pdx/imagenet2012/tf-imagenet/resized
eu-west-1,s3://ragab-ml-dub/imagenet2012/tf-imagenet/resized
eu-central-1,s3://ragab-ml-fra/imagenet2012/tf-imagenet/resized
"""
ROLE = "arn:aws:iam::123456789012:role/sagemaker-sdk"
JOB: dict[str, Any] = {
    "source_dir": "code",
    "entry_point": "train.py",
    "role": ROLE,
    "output_path": "s3://ragab-ml/out",
    "image_uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/sage:latest",
    "instance_groups": [
        {"name": "data_group", "type": "ml.c5.xlarge", "count": 1},
        {"name": "dnn_group", "type": "ml.g5.xlarge", "count": 1},
    ],
    "inputs": {"train": "s3://ragab-ml/all"},
}
BATCH = {"queue": "training", "region": "us-east-1", "bundle": "s3://ragab-ml/grids"}
WHEEL = ("headrace-0-py3-none-any.whl", b"wheel")


def write_grid(folder: Path, lines: str | Mapping[str, Any] = SEED, **other: Any) -> Path:
    """Writes a grid: its job, its code, its lines. Returns its file.

    Args:
        folder: where.
        lines: content of its array file, or the part `lines` of its file.
        other: parts of the grid's file; ``job`` is keys of the job, over those of `JOB`.
    """
    (folder / "code").mkdir(parents=True, exist_ok=True)
    (folder / "code" / "train.py").write_text("print('trained')\n")
    (folder / "job.yaml").write_text(job_document.write({**JOB, **other.pop("job", {})}))
    source = lines
    if isinstance(lines, str):
        (folder / "sage_array.txt").write_text(lines)
        source = {"file": "sage_array.txt"}
    file = folder / "array.yaml"
    grid = {"name": "imagenet", "job": "job.yaml", "lines": source, "batch": BATCH, **other}
    file.write_text(job_document.write(grid))
    return file


def exported(file: Path) -> BatchExport:
    """Reads, plans and exports a grid."""
    grid = load_grid(file)
    return export_batch(grid, grid.file.batch, plan_grid(grid), WHEEL, "us-east-1")

"""The rows: one module each, with `TITLE`, `run(bench, settings)` and `figures(records)`."""

from __future__ import annotations

import importlib
from types import ModuleType

# Name to module, in the order of the table.
ROWS = {
    "shm19": "same_host",
    "shm150k": "same_host",
    "small64": "small_samples",
    "rows1024": "mapped_rows",
    "nested": "nested",
    "inline64": "without_workers",
    "tcp19": "tcp",
    "services": "services",
    "shapes-shm19": "shapes",
    "shapes-shm150k": "shapes",
    "shapes-tcp19": "shapes",
    "busy": "busy",
    "long-batches": "long_batches",
    "jpeg": "jpeg",
    "jpeg-apart": "jpeg_apart",
    "coordination": "coordination",
    "first-batch": "first_batch",
    "resume": "resume",
    "kill": "kill",
}


def module(row: str) -> ModuleType:
    """Returns the module of a row."""
    return importlib.import_module(f"bench.feed.rows.{ROWS[row]}")

"""The audit: what a trainer was given, hashed batch by batch, outside headrace.

The file has one line a batch: epoch, step, digest. A digest covers bytes, dtypes, shapes and structure.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch


def digest(batch: Any) -> str:
    """Returns the hash of a batch: 32 hex digits."""
    found = hashlib.blake2b(digest_size=16)
    _update(found, batch)
    return found.hexdigest()


def _update(found: Any, item: Any) -> None:
    if isinstance(item, torch.Tensor):
        found.update(f"tensor {item.dtype} {tuple(item.shape)} ".encode())
        found.update(item.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(item, dict):
        found.update(f"dict {len(item)} ".encode())
        for key, value in item.items():
            found.update(f"{key!r} ".encode())
            _update(found, value)
    elif isinstance(item, (list, tuple)):
        found.update(f"{type(item).__name__} {len(item)} ".encode())
        for value in item:
            _update(found, value)
    else:
        found.update(f"{type(item).__name__} {item!r} ".encode())


class Writer:
    """Appends to an audit file; a line is there, whole, before `add` returns, whatever happens to the process then."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, epoch: int, step: int, batch: Any) -> None:
        os.write(self._descriptor, f"{epoch} {step} {digest(batch)}\n".encode())


def lines(path: Path) -> list[str]:
    """Returns the complete lines of an audit file so far."""
    return path.read_text().splitlines() if path.exists() else []

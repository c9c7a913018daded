"""The first digits of examples/digits: an epoch of all of them takes ten seconds of CPU to prepare."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits"
HEADERS = {"images-idx3": 16, "labels-idx1": 8}


def preparing() -> ModuleType:
    """Imports the script that writes the digits."""
    spec = importlib.util.spec_from_file_location("digits_prepare", EXAMPLE / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_few(folder: Path, count: int) -> Path:
    """Writes all test digits and `count` training digits (of 1,438) to a folder, which it returns."""
    prepare = preparing()
    prepare.main(folder)
    for name, header in HEADERS.items():
        path = folder / f"train-{name}-ubyte.gz"
        values = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)
        prepare.write_idx(path, values.reshape(-1, 8, 8)[:count] if header == 16 else values[:count])
    return folder

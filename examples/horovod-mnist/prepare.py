"""Writes the digits as the two files of the notebook, data/train/train.npz and data/test/test.npz.

    python prepare.py [DIRECTORY]

The digits are those of examples/digits, read from the MNIST-format files that its prepare.py writes.
"""

from __future__ import annotations

import gzip
import runpy
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def read_idx(path: Path) -> np.ndarray:
    """Reads a gzipped IDX file of unsigned bytes."""
    data = gzip.decompress(path.read_bytes())
    dimensions = data[3]
    shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def main(directory: Path) -> None:
    """Writes the two files, unless they are there."""
    if (directory / "test" / "test.npz").exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        runpy.run_path(str(HERE.parent / "digits" / "prepare.py"))["main"](Path(folder))
        for part, prefix in (("train", "train"), ("test", "t10k")):
            target = directory / part / f"{part}.npz"
            target.parent.mkdir(parents=True, exist_ok=True)
            images = read_idx(Path(folder) / f"{prefix}-images-idx3-ubyte.gz")
            labels = read_idx(Path(folder) / f"{prefix}-labels-idx1-ubyte.gz")
            np.savez(target, data=images, labels=labels)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "data")

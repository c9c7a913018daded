"""Writes scikit-learn's UCI handwritten digits as MNIST-format files. Does nothing if they are there.

    python prepare.py [DIRECTORY]

1,797 scans of 8 x 8 pixels, 16 grey levels, from 43 people; every fifth is held out for the test.
"""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def write_idx(path: Path, values: np.ndarray) -> None:
    """Writes unsigned bytes as a gzipped IDX file."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes(), mtime=0))
    temporary.replace(path)


def main(directory: Path) -> None:
    """Writes the four files."""
    names = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]
    paths = [directory / f"{name}-ubyte.gz" for name in names]
    if all(path.exists() for path in paths):
        return
    directory.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    images = np.rint(digits.images * (255.0 / 16.0))
    held_out = np.arange(len(images)) % 5 == 4
    parts = [images[~held_out], digits.target[~held_out], images[held_out], digits.target[held_out]]
    for path, values in zip(paths, parts, strict=True):
        write_idx(path, values)
    print(f"wrote {len(parts[0])} training and {len(parts[2])} test digits to {directory}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")

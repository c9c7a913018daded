"""Makes a database of driving campaigns, and the data of each. Does nothing if they are there.

    python prepare.py [DIRECTORY]

Four campaigns in two regions: each has a part of scikit-learn's UCI handwritten digits, as the "signs" that its cars
saw, in MNIST's format. The later in the day a campaign drove, the darker its pictures are. All are judged by the same
digits, which no campaign has.
"""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
CAMPAIGNS = [  # name, region, day, light
    ("sf-spring", "us-west-2", "2026-04-11", 1.0),
    ("sf-autumn", "us-west-2", "2026-10-02", 0.9),
    ("detroit-autumn", "us-east-1", "2026-10-19", 0.6),
    ("detroit-night", "us-east-1", "2026-11-05", 0.3),
]
TABLE = "create table campaigns (name text primary key, region text, place text, day text, signs integer)"


def mnist_writer() -> Callable[[Path, np.ndarray], None]:
    """Returns the function of examples/digits that writes MNIST's format."""
    spec = importlib.util.spec_from_file_location("prepare_digits", HERE.parent / "digits" / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_idx


def main(directory: Path) -> None:
    """Writes a folder a campaign, and at last the database."""
    database = directory / "campaigns.db"
    if database.exists():
        return
    write_idx = mnist_writer()
    digits = load_digits()
    images = digits.images * (255.0 / 16.0)
    held_out = np.arange(len(images)) % 5 == 4
    rows = []
    for number, (name, region, day, light) in enumerate(CAMPAIGNS):
        mine = np.flatnonzero(~held_out)[number :: len(CAMPAIGNS)]
        folder = directory / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        write_idx(folder / "train-images-idx3-ubyte.gz", np.rint(images[mine] * light))
        write_idx(folder / "train-labels-idx1-ubyte.gz", digits.target[mine])
        write_idx(folder / "t10k-images-idx3-ubyte.gz", np.rint(images[held_out]))
        write_idx(folder / "t10k-labels-idx1-ubyte.gz", digits.target[held_out])
        rows.append((name, region, f"data/{name}", day, len(mine)))
    unfinished = database.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    connection = sqlite3.connect(unfinished)
    with connection:
        connection.execute(TABLE)
        connection.executemany("insert into campaigns values (?, ?, ?, ?, ?)", rows)
    connection.close()
    unfinished.replace(database)
    print(f"wrote {len(rows)} campaigns to {database}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)

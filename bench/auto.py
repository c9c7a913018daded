"""`num_workers="auto"` against a hand sweep, on six pipelines.

    python -m bench.auto --rounds 3 --output bench/results/auto-DATE.jsonl
    python -m bench.auto --only sleepy --workers 1,2,4 --seconds 5 --settle 10 --rounds 1     # a look

Each round runs, for each pipeline, every number of the sweep and "auto", in an order of its own. A run takes batches
for `--settle` seconds that do not count (for "auto" the time in which it finds its number; for the others as long as
they need to start: a tenth of it) and then counts for `--seconds`. The trainer does nothing but take, so that the
fastest number wins. The pipeline jpeg needs Pillow (`make bench-feed` makes .venv-bench, which has it). Raw data: one
JSON object a run, also where "auto" loses. The table shows medians over the rounds: rows a second of the best number,
of "auto", their ratio, and the number that "auto" had in the end.

    jpeg        a photograph-like JPEG of 320 x 320, decoded and cropped with Pillow
    tokens      a text of 400 words, cut by a regular expression and looked up in a vocabulary
    mapped      64 rows of 8 KB at random places of a file mapped into memory
    sleepy      5 ms of sleep in each sample, as for a network
    augment     an image of 96 x 96: flipped, rolled, with noise, normalised, in NumPy
    arrays      a batch of four arrays of 4.8 MB
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace import feed

SWEEP = (1, 2, 4, 8, 16)
ROWS = 1 << 30


class Made:
    """A dataset without an end worth mentioning; `make` makes a sample."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


def jpeg(folder: Path) -> tuple[Made, int]:
    from PIL import Image

    del folder
    noise = np.random.default_rng(1).normal(0, 12, (320, 320, 3)).cumsum(0).cumsum(1)
    pixels = np.uint8(255 * (noise - noise.min()) / np.ptp(noise))
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=85)
    data = out.getvalue()

    def make(index: int) -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        left = index % 90
        return np.asarray(image.crop((left, left, left + 224, left + 224)))

    return Made(make), 32


def tokens(folder: Path) -> tuple[Made, int]:
    del folder
    chance = random.Random(1)
    words = ["".join(chance.choice("abcdefghijklmnop") for _ in range(chance.randrange(2, 9))) for _ in range(5000)]
    vocabulary = {word: number for number, word in enumerate(words)}
    texts = [", ".join(chance.choice(words) for _ in range(400)) for _ in range(64)]
    cut = re.compile(r"[a-z]+|,")

    def make(index: int) -> Any:
        ids = [vocabulary.get(word, 0) for word in cut.findall(texts[index % 64])]
        return np.array((ids + [0] * 1024)[:1024], dtype=np.int64)

    return Made(make), 32


def mapped(folder: Path) -> tuple[Made, int]:
    path = folder / "rows.npy"
    np.save(path, np.random.default_rng(1).random((8192, 2048), dtype=np.float32))
    rows = np.load(path, mmap_mode="r")
    return Made(lambda index: np.array(rows[(index * 7919) % 8192])), 64


def sleepy(folder: Path) -> tuple[Made, int]:
    del folder

    def make(index: int) -> Any:
        time.sleep(0.005)
        return np.int64(index)

    return Made(make), 16


def augment(folder: Path) -> tuple[Made, int]:
    del folder
    images = np.random.default_rng(1).integers(0, 255, (64, 96, 96, 3), dtype=np.uint8)

    def make(index: int) -> Any:
        image = images[index % 64].astype(np.float32) / 255
        image = np.roll(image[:, ::-1] if index % 2 else image, index % 9, axis=(0, 1))
        image = image + np.random.normal(0, 0.02, image.shape).astype(np.float32)
        return (image - image.mean((0, 1))) / (image.std((0, 1)) + 1e-6)

    return Made(make), 32


def arrays(folder: Path) -> tuple[Made, int]:
    del folder
    array = np.random.default_rng(1).random((1200, 1000), dtype=np.float32)
    return Made(lambda index: array + np.float32(index % 7)), 4


PIPELINES = {"jpeg": jpeg, "tokens": tokens, "mapped": mapped, "sleepy": sleepy, "augment": augment, "arrays": arrays}


def run(data: Made, batch: int, workers: int | str, settle: float, seconds: float) -> dict[str, Any]:
    """Returns the rows a second of one run, and what "auto" chose."""
    with feed.DataLoader(data, batch, num_workers=workers, seed=1, collate_fn=feed.stack_arrays) as loader:  # type: ignore[arg-type]
        batches = iter(loader)
        next(batches)
        begun = time.monotonic()
        quiet = begun + (settle if workers == "auto" else settle / 10)
        found, taken, since = 0.0, 0, 0.0
        while (now := time.monotonic()) < quiet:
            next(batches)
            if loader.stats()["tuning"] is not None and loader.stats()["tuning"]["changes"]:  # type: ignore[index]
                found = loader.stats()["tuning"]["changes"][-1].seconds  # type: ignore[index]
        since = time.monotonic()
        while (now := time.monotonic()) < since + seconds:
            next(batches)
            taken += batch
        stats = loader.stats()
        tuning = stats["tuning"]
        return {
            "rows_per_second": taken / (now - since),
            "executors": stats["executors"],
            "because": tuning["because"].value if tuning is not None else None,
            "last_change": found if tuning is not None else None,
            "changes": [[*change[:3], change.because.value] for change in tuning["changes"]] if tuning else None,
            "load": os.getloadavg()[0],
        }


def table(runs: list[dict[str, Any]]) -> str:
    """Returns the medians as a Markdown table."""
    lines = ["| pipeline | best number | rows/s | auto, rows/s | ratio | auto's number |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(each["pipeline"] for each in runs):
        speeds: dict[Any, list[float]] = {}
        for each in runs:
            if each["pipeline"] == name:
                speeds.setdefault(each["workers"], []).append(each["rows_per_second"])
        medians = {workers: statistics.median(found) for workers, found in speeds.items()}
        auto = medians.pop("auto")
        best = max(medians, key=lambda workers: medians[workers])
        numbers = [each["executors"] for each in runs if each["pipeline"] == name and each["workers"] == "auto"]
        lines.append(
            f"| {name} | {best} | {medians[best]:.0f} | {auto:.0f} | {auto / medians[best]:.2f} | "
            f"{statistics.median(numbers):g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that count, of each run")
    parser.add_argument("--settle", type=float, default=40.0, help='seconds before, for "auto"; a tenth for a number')
    parser.add_argument("--workers", default=",".join(map(str, SWEEP)), help="numbers of the sweep")
    parser.add_argument("--only", default=",".join(PIPELINES), help="pipelines")
    parser.add_argument("--output", type=Path, help="file for the raw data, which it appends to")
    options = parser.parse_args()
    sweep: list[int | str] = [*map(int, options.workers.split(",")), "auto"]
    machine = {"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for name in options.only.split(","):
                data, batch = PIPELINES[name](Path(folder))
                order = random.Random(number).sample(sweep, len(sweep))
                for workers in order:
                    found = run(data, batch, workers, options.settle, options.seconds)
                    runs.append({"pipeline": name, "round": number, "workers": workers} | machine | found)
                    print(json.dumps(runs[-1]), flush=True)
                    if options.output is not None:
                        with options.output.open("a") as file:
                            file.write(json.dumps(runs[-1]) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()

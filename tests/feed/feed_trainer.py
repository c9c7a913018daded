"""A trainer for the resume tests: notes what it trained on and its position after every step, in one line each."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import array_data

from headrace.feed import DataLoader, stack_arrays


def main(path: str, workers: str, secret: str, epochs: int) -> None:
    """Trains from the last line of the file on."""
    book = Path(path)
    lines = book.read_text().splitlines() if book.exists() else []
    options = {"workers": workers, "secret_file": secret} if workers else {"num_workers": 2}
    options |= {"batch_size": 4, "shuffle": True, "seed": 3, "collate_fn": stack_arrays}
    with DataLoader(array_data.pictures(delay=0.002), **options) as loader:
        first = 0
        if lines:
            state = json.loads(lines[-1])["state"]
            loader.load_state_dict(state)
            first = state["epoch"]
        for epoch in range(first, epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                trained = hashlib.sha256(batch[0]["image"].tobytes() + batch[1].tobytes()).hexdigest()
                line = json.dumps({"pid": os.getpid(), "epoch": epoch, "batch": trained, "state": loader.state_dict()})
                with book.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

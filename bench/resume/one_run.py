"""One process of a resume: it gives some batches of an epoch and saves, or goes on to the end, or loses a worker.

    python -m bench.resume.one_run NAME FOLDER save STEPS FILE
    python -m bench.resume.one_run NAME FOLDER go_on 0 FILE      # without a FILE that is there, from the beginning
    python -m bench.resume.one_run NAME FOLDER kill STEPS FILE   # SIGKILL to one worker behind so many steps

prints one JSON object; the numbers of the samples that came are in FILE.numbers, a batch a line, and are added to.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from bench.resume.contenders import CONTENDERS


def numbers_of(batch: Any) -> list[int]:
    """The numbers of a batch."""
    given = batch["number"] if isinstance(batch, dict) else batch
    return [int(each) for each in given]


def kill_one() -> None:
    """Kills the child that has worked the most."""
    children = psutil.Process().children(recursive=True)
    busiest = max(children, key=lambda each: sum(each.cpu_times()[:2]))
    os.kill(busiest.pid, signal.SIGKILL)


def main() -> None:
    name, folder, what, given, kept = sys.argv[1:]
    steps, file = int(given), Path(kept)
    torch.set_num_threads(1)
    loader = CONTENDERS[name](Path(folder))
    state = pickle.loads(file.read_bytes()) if what == "go_on" and file.exists() else None
    told: dict[str, Any] = {"error": ""}
    longest, began = 0.0, time.perf_counter()
    if state is not None:
        loader.load(state)
    try:
        numbers = file.with_suffix(".numbers").open("a", buffering=1)
        for step, batch in enumerate(loader, 1):
            now = time.perf_counter()
            told.setdefault("first", now - began)
            longest, began = max(longest, now - began if step > 1 else 0.0), now
            numbers.write(" ".join(map(str, numbers_of(batch))) + "\n")
            if step == steps and what == "save":
                saved = pickle.dumps(loader.saved())
                file.write_bytes(saved)
                told["bytes"] = len(saved)
                break
            if step == steps and what == "kill":
                kill_one()
    except Exception as error:  # noqa: BLE001 - whatever a library raises is what is asked
        told["error"] = type(error).__name__
    told["longest"] = longest
    print(json.dumps(told), flush=True)
    os._exit(0)  # loaders that lost a worker may wait for it for ever


if __name__ == "__main__":
    main()

"""One process of a resume: it gives some batches of an epoch and saves, or goes on to the end, or loses a worker.

    python -m bench.resume.one_run NAME FOLDER WORKERS save STEPS FILE
    python -m bench.resume.one_run NAME FOLDER WORKERS go_on 0 FILE    # without a FILE, from the beginning
    python -m bench.resume.one_run NAME FOLDER WORKERS kill STEPS FILE   # SIGKILL to one worker behind so many steps

prints one JSON object; the numbers of the samples that came are in FILE.RANK, a batch a line, and are added to; its
state is FILE-RANK. Ranks are those of torchrun.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
import traceback
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
    name, folder, workers, what, given, kept = sys.argv[1:]
    steps, file = int(given), Path(kept)
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    loader = CONTENDERS[name](Path(folder), int(workers))
    states = [pickle.loads(each.read_bytes()) for each in sorted(file.parent.glob(f"{file.name}-*")) if what == "go_on"]
    told: dict[str, Any] = {"error": ""}
    longest, began = 0.0, time.perf_counter()
    try:
        if states:
            loader.load(loader.joined(states))
        numbers = file.with_name(f"{file.name}.{rank}").open("a", buffering=1)
        for step, batch in enumerate(loader, 1):
            now = time.perf_counter()
            told.setdefault("first", now - began)
            longest, began = max(longest, now - began if step > 1 else 0.0), now
            numbers.write(" ".join(map(str, numbers_of(batch))) + "\n")
            if step == steps and what == "save":
                saved = pickle.dumps(loader.saved())
                file.with_name(f"{file.name}-{rank}").write_bytes(saved)
                told["bytes"] = len(saved)
                break
            if step == steps and what == "kill":
                kill_one()
    except Exception as error:  # noqa: BLE001 - whatever a library raises is what is asked
        traceback.print_exc()
        told["error"] = type(error).__name__
    told["longest"] = longest
    print(json.dumps(told), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a rank that ends first would take its store with it
    for child in psutil.Process().children(recursive=True):  # Grain's would outlive this process
        child.kill()
    os._exit(0)  # loaders that lost a worker may wait for it for ever


if __name__ == "__main__":
    main()

"""Training loops whose costs are set, one workload after the other; every one is a loader of its own name."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from samples import burn, rows, stacked

from headrace import feed

READY_SECONDS = 60.0
LOOK_SECONDS = 0.05


def wait_for_workers() -> None:
    """Waits until every feed server of the job is ready, so that none of them starts while the time is taken."""
    file = Path(os.environ["HEADRACE_FEED"])
    deadline = time.monotonic() + READY_SECONDS
    while waiting := [host["host"] for host in json.loads(file.read_text())["hosts"] if host["state"] != "ready"]:
        if time.monotonic() > deadline:
            sys.exit(f"the feed servers of {', '.join(waiting)} were not ready after {READY_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


def train(name: str, costs: dict[str, float], batch_size: int, seconds: float) -> None:
    """Trains for so many seconds, from the first batch on."""
    dataset = rows(length=1_000_000, wait=costs["sample_wait"], burnt=costs["sample_burn"], size=int(costs["bytes"]))
    begun = 0.0
    with feed.DataLoader(dataset, batch_size=batch_size, collate_fn=stacked, verify=0.0, name=name) as loader:
        for _ in loader:
            begun = begun or time.monotonic()
            burn(costs["step_burn"])
            time.sleep(costs["step_wait"])
            if time.monotonic() - begun > seconds:
                return


def main() -> None:
    """Works through the workloads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=json.loads, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    wait_for_workers()
    for name, costs in options.workloads.items():
        train(name, costs, options.batch_size, options.seconds)


if __name__ == "__main__":
    main()

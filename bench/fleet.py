"""How the feed's ranks use many data hosts, also when these die in tens; simulated, in one process.

    python -m bench.fleet 1000 1000

It runs `tests/feed/simulated_fleet.py`: real sessions, with their real choice of hosts, on a simulated clock and
network. The hosts have four executors, which are busy for `--load` of the time if every host lives. After a third of
the steps ten hosts die at once, and ten more every ten steps until a tenth of them is dead or the steps end. A row has:

    connections, host_least, host_most    of all ranks, and of one host, when all live
    rank_most                             hosts that one rank was connected to at one time
    work_p5, work_p95                     5 and 95 % of the hosts have done less work, in parts of the mean
    wait_mean_ms, dying_wait_mean_ms      what the slowest rank waits for a batch, a step, simulated: before hosts die,
                                          and from then on; without the first ten steps, which fill the windows
    dying_wait_most_ms                    the longest of these
    message_bytes                         of messages both ways for a batch, without its own
    start_cpu_ms                          of a rank, until its first batch
    batch_cpu_ms                          of a rank; both with what the simulated hosts do for it
    descriptors, megabytes                of the process at the end
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / place) for place in ("feed", ".")]
from simulated_fleet import BATCH, Fleet  # noqa: E402

EXECUTORS, PACE, FULL = 4, 0.01, 10  # of a host; seconds a row; steps that fill the windows
DYING = 10  # hosts at once


def measure(ranks: int, hosts: int, steps: int, load: float, window: int) -> dict[str, float]:
    """Trains, and returns a row."""
    compute = ranks * BATCH * PACE / (hosts * EXECUTORS * load)
    row: dict[str, float] = {"ranks": ranks, "hosts": hosts, "load": load, "window": window, "step_ms": 1e3 * compute}
    with tempfile.TemporaryDirectory(prefix="headrace-fleet-") as folder:
        fleet = Fleet(Path(folder), ranks, hosts, executors=EXECUTORS, pace=PACE, compute=compute, steps=steps)
        names, began = list(fleet.hosts), time.process_time()
        with fleet.training(memory=window << 16):
            fleet.step(0)
            row["start_cpu_ms"] = 1e3 * (time.process_time() - began) / ranks
            began, spoken = time.process_time(), fleet.spoken
            for step in range(1, steps):
                if step == steps // 3:
                    row |= fleet.summary()
                if step >= steps // 3 and not (step - steps // 3) % 10 and len(names) > 0.9 * hosts:
                    fleet.kill(names[:DYING])
                    del names[:DYING]
                fleet.step(step)
            batches = ranks * (steps - 1)
            row |= {
                "died": hosts - len(names),
                "connections_after": fleet.summary()["connections"],
                "rank_most": max(fleet.most.values()),
                "wait_mean_ms": 1e3 * statistics.fmean(fleet.waits[FULL : steps // 3]),
                "dying_wait_mean_ms": 1e3 * statistics.fmean(fleet.waits[steps // 3 :]),
                "dying_wait_most_ms": 1e3 * max(fleet.waits[steps // 3 :]),
                "message_bytes": (fleet.spoken - spoken) / batches,
                "batch_cpu_ms": 1e3 * (time.process_time() - began) / batches,
                "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
                "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            }
    return {name: round(figure, 3) for name, figure in row.items()}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="bench.fleet", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("ranks", type=int)
    parser.add_argument("hosts", type=int)
    parser.add_argument("--steps", type=int, default=90, help="batches of a rank (default 90)")
    parser.add_argument("--load", type=float, default=0.8, help="share of the time that executors work (default 0.8)")
    parser.add_argument("--window", type=int, default=32, help="batches that a rank's memory holds (default 32)")
    parser.add_argument("--output", type=Path, help="file to which the row is appended as a JSON line")
    options = parser.parse_args()
    if options.steps <= 3 * FULL:
        parser.error(f"--steps is {options.steps}; more than {3 * FULL} are needed")
    row = measure(options.ranks, options.hosts, options.steps, options.load, options.window)
    print(json.dumps(row))
    if options.output:
        with options.output.open("a") as file:
            file.write(json.dumps({"t": round(time.time()), **row}) + "\n")


if __name__ == "__main__":
    main()

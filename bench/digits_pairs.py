"""How much a data instance speeds up the digits example, against the ideal, over interleaved pairs of runs.

    python bench/digits_pairs.py [--pairs 5] [--epochs 3]

First torch's DataLoader is swept over its number of workers on the homogeneous job, and the best setting is kept. Then
every pair measures P and T and runs, one after the other: homogeneous with torch at its best, homogeneous with
headrace, heterogeneous with headrace. Speed-up is the ratio of mean step times of the two headrace runs of a pair.
Raw data go to bench/results/. On a shared machine look at the ratios, not at the milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples" / "digits"))

import demo  # noqa: E402 - the example's own code runs the jobs
import prepare  # noqa: E402


def describe(outcome: demo.Outcome) -> dict[str, object]:
    """Returns what is kept of a run."""
    return {
        "run": outcome.report.run_id,
        "step_time_ms": outcome.figure("step_time"),
        "samples_per_second": outcome.figure("samples_per_second"),
        "data_wait_percent": outcome.figure("data_wait"),
        "cpu_percent": {group.name: group.cpu.value for group in outcome.report.groups},
        "time_to_train_s": outcome.report.time_to_train.value,
        "accuracy": outcome.accuracy,
    }


def torch_run(workers: int, epochs: str) -> demo.Outcome:
    """One homogeneous run with torch's DataLoader."""
    overrides = [epochs, "hyperparameters.loader=torch", f"hyperparameters.num_workers={workers}"]
    return demo.run("torch", "homogeneous.yaml", overrides, quiet=True)


def spread(values: list[float]) -> str:
    """Returns the median with the smallest and the largest value."""
    return f"{statistics.median(values):.2f} [{min(values):.2f} .. {max(values):.2f}]"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    prepare.main(ROOT / "examples" / "digits" / "data")
    epochs = f"hyperparameters.epochs={options.epochs}"
    sweep = {workers: describe(torch_run(workers, epochs)) for workers in (0, 1, 2)}
    best = min(sweep, key=lambda workers: sweep[workers]["step_time_ms"])  # type: ignore[arg-type, return-value]
    print(f"torch's best on core 0: num_workers={best} of {{{', '.join(str(w) for w in sweep)}}}", flush=True)
    pairs = []
    for number in range(options.pairs):
        load = os.getloadavg()[0]
        costs = demo.measure()
        peer = torch_run(best, epochs)
        alone = demo.run("homogeneous", "homogeneous.yaml", [epochs], quiet=True)
        mixed = demo.run("heterogeneous", "heterogeneous.yaml", [epochs], quiet=True)
        pair = {
            "load_before": load,
            "costs": costs,
            "torch": describe(peer),
            "homogeneous": describe(alone),
            "heterogeneous": describe(mixed),
            "speed_up": alone.figure("step_time") / mixed.figure("step_time"),
            "speed_up_over_torch": peer.figure("step_time") / mixed.figure("step_time"),
            "loss_curves_equal": alone.losses == mixed.losses,
        }
        pairs.append(pair)
        print(
            f"pair {number + 1}: torch {peer.figure('step_time'):.0f} ms, "
            f"homogeneous {alone.figure('step_time'):.0f} ms, "
            f"heterogeneous {mixed.figure('step_time'):.0f} ms, speed-up {pair['speed_up']:.2f}, "
            f"ideal {costs['ideal_ratio']:.2f}, losses equal: {pair['loss_curves_equal']}",
            flush=True,
        )
    ups = [pair["speed_up"] for pair in pairs]
    ideals = [pair["costs"]["ideal_ratio"] for pair in pairs]
    shares = [up / ideal for up, ideal in zip(ups, ideals, strict=True)]
    print(f"speed-up {spread(ups)}, ideal {spread(ideals)}, share of the ideal {spread(shares)}")
    print(f"speed-up over torch's best {spread([pair['speed_up_over_torch'] for pair in pairs])}")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    file = results / f"digits_pairs-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    file.write_text(json.dumps({"machine": machine, "sweep": sweep, "pairs": pairs}, indent=1) + "\n")
    print(f"raw data: {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

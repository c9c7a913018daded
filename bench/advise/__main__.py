"""The command line; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from bench.advise.accuracy import CALIBRATION, CLUSTERS, Outcome, judge, summary, table
from bench.advise.runs import WORKLOADS, outcomes_of, run_cluster
from bench.feed.publish import put

from headrace.insight.advise.advisor import measured_of

RESULTS = Path(__file__).parent.parent / "results"


def publish(document: dict[str, Any], name: str) -> None:
    """Writes the table of a raw data file into docs/benchmark-figures.md."""
    load = document["load_before"][0]
    where = f"Rounds: {document['rounds']}, on {document['machine']['cpus']} cores, load before: {load:.1f}; `{name}`"
    put("advise", f"{document['table']}\n\n{document['text']}\n\n{where}")


def main() -> int:
    """Runs the rounds. Returns 0, whatever the accuracy is: it is a measurement, not a test."""
    parser = argparse.ArgumentParser(prog="python -m bench.advise", description="Accuracy of `headrace advise`.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.4, help="of every workload")
    parser.add_argument(
        "--calibration", type=float, default=6.0, help="seconds of every workload in the calibration run"
    )
    parser.add_argument("--output", type=Path, help="file for the raw data")
    parser.add_argument(
        "--publish", type=Path, metavar="FILE", help="measure nothing; write its table into docs/benchmark-figures.md"
    )
    options = parser.parse_args()
    if options.publish:
        publish(json.loads(options.publish.read_text()), options.publish.name)
        return 0
    if (os.cpu_count() or 1) < 2:
        print("error: two CPUs are needed", file=sys.stderr)
        return 2
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="headrace-advise-") as home:
        os.environ["HEADRACE_HOME"] = home
        for number in range(options.repeats):
            for cluster in CLUSTERS:
                first = number == 0 and cluster == CALIBRATION
                run = run_cluster(cluster, number, options.calibration if first else options.seconds)
                outcomes += outcomes_of(run, cluster, number)
                if first:
                    calibrations = {name: measured_of(run, loader=name) for name in WORKLOADS}
                print(f"round {number + 1}, {cluster.title}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    judged = judge(outcomes, calibrations)
    found = summary(judged)
    print(table(judged))
    print(found.text)
    file = options.output or RESULTS / f"advise-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    document = {
        "machine": machine,
        "load_before": load,
        "load_after": os.getloadavg(),
        "seconds": time.monotonic() - begun,
        "workloads": WORKLOADS,
        "summary": found.numbers,
        "rounds": options.repeats,
        "text": found.text,
        "table": table(judged),
        "judged": [one.plain() for one in judged],
        "calibrations": msgspec.to_builtins(calibrations),
        "outcomes": [one.plain() for one in outcomes],
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")
    print(f"raw data: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

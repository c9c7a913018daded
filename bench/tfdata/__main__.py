"""Measures three ways of feeding TensorFlow from two worker processes, in interleaved rounds.

    python -m bench.tfdata [--rounds 3] [--seconds 4]

* by hand: a dispatcher and two workers of tf.data service, as TensorFlow's guide starts them;
* managed: the same, started and watched by headrace, in a job;
* feed: `headrace.tensorflow.feed`, with a feed server of two executors, through TCP.

The rows are described in code/pipelines.py. Uncompressed, `max_outstanding_requests=8`, the best of the sweep in
bench/results. A ratio is taken within a round; shown are its median, smallest and largest value. Raw data go to
bench/results/. Takes somewhat more than a minute a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.feed.servers import ROOT, Program
from bench.feed.surroundings import describe

from headrace.job import load_job
from headrace.measuring.loopback import feed_server
from headrace.runs import Status

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "code"))

from pipelines import ROWS, write_files  # noqa: E402 - the code that the contenders run

WORKERS = 2
Records = list[dict[str, Any]]


class Bench:
    """What all contenders share.

    Args:
        directory: for the data and the results.
        seconds: of one row's measurement.
    """

    def __init__(self, directory: Path, seconds: float) -> None:
        self._result = directory / "result.json"
        self._arguments = {
            "data": str(directory), "seconds": str(seconds), "root": str(os.getpid()), "result": str(self._result)
        }  # fmt: skip

    def _client(self, contender: str, **more: str) -> Records:
        given = {"contender": contender} | self._arguments | more
        arguments = [text for name, value in given.items() for text in (f"--{name}", value)]
        variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
        subprocess.run([sys.executable, str(HERE / "code" / "client.py"), *arguments], check=True, env=variables)
        return self._read()

    def _read(self) -> Records:
        found: Records = json.loads(self._result.read_text())
        self._result.unlink()
        return found

    def by_hand(self) -> Records:
        """tf.data service, started here."""
        programs = [Program("tf_server", "dispatcher")]
        try:
            for _ in range(WORKERS):
                programs.append(Program("tf_server", "worker", str(programs[0].port)))
            return self._client("by hand", service=f"grpc://127.0.0.1:{programs[0].port}")
        finally:
            for program in reversed(programs):
                program.stop()

    def managed(self) -> Records:
        """tf.data service, started by a job."""
        given = {"contender": "managed"} | self._arguments
        job = load_job(HERE / "managed.yaml", [f"hyperparameters.{name}={value}" for name, value in given.items()])
        handle = job.fit(engine="local", logs=False)
        if handle.status is not Status.COMPLETED:
            raise RuntimeError(f"{handle.id} did not complete: headrace logs {handle.id}")
        return self._read()

    def feed(self) -> Records:
        """headrace's feed."""
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "code"), os.environ.get("PYTHONPATH", "")])
        with feed_server(WORKERS, code=ROOT) as server:
            return self._client("feed", service=server.address, secret=server.secret_file)


def spread(values: list[float]) -> str:
    """Returns the median with the smallest and the largest value."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} .. {max(values):.3g})"


def show(rounds: list[Records]) -> None:
    """Prints the figures and the ratios."""
    by = [{(record["contender"], record["row"]): record for record in records} for records in rounds]

    def rate(record: dict[str, Any]) -> float:
        return float(record["bytes"] / record["seconds"] / 1e6)

    def cost(record: dict[str, Any]) -> float:
        return float(record["cpu_seconds"] / record["bytes"] * 1e9)

    for row in ROWS:
        print(f"\n{row}: median (min .. max) of {len(rounds)} rounds")
        for contender in ("by hand", "managed", "feed"):
            rates = spread([rate(each[contender, row]) for each in by])
            costs = spread([cost(each[contender, row]) for each in by])
            print(f"  {contender:8} {rates:28} MB/s   {costs} CPU s/GB")
        for ours in ("managed", "feed"):
            rates = spread([rate(each[ours, row]) / rate(each["by hand", row]) for each in by])
            costs = spread([cost(each[ours, row]) / cost(each["by hand", row]) for each in by])
            print(f"  {ours} / by hand: throughput {rates}, CPU s/GB {costs}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one row's measurement")
    options = parser.parse_args()
    facts = describe()
    rounds: list[Records] = []
    with tempfile.TemporaryDirectory(prefix="bench-tfdata-") as folder:
        write_files(Path(folder))
        bench = Bench(Path(folder), options.seconds)
        for number in range(options.rounds):
            order = [bench.by_hand, bench.managed, bench.feed]
            turned = order[number % 3 :] + order[: number % 3]
            rounds.append([record for contender in turned for record in contender()])
            print(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
    show(rounds)
    file = ROOT / "bench" / "results" / f"tfdata-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    file.write_text(json.dumps({"machine": facts, "seconds": options.seconds, "rounds": rounds}, indent=1) + "\n")
    print(f"\nraw data: {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

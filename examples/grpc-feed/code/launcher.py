"""The entry point, the same on every host: starts what the host's group is for.

A data host serves batches until it is asked to end. A training host trains; when that has ended, well or not, rank 0
asks every data host to end. The exit code is that of the program, also when a signal has killed it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import cluster
import shutdown

SHUTDOWN_SECONDS = 10.0


def run(script: str) -> int:
    """Runs a script with this process's arguments; SIGTERM is passed on. Returns its exit code, or 128 + signal."""
    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name(script)), *sys.argv[1:]])
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    code = process.wait()
    print(f"{script} on {cluster.current_host()} ended with {code}", flush=True)
    return code if code >= 0 else 128 - code


def end_data_hosts(reason: str) -> bool:
    """Asks every data host to end. Returns whether all have said that they do."""
    done = True
    for host in cluster.hosts_of(cluster.DATA_GROUP):
        try:
            shutdown.ask(host, cluster.SHUTDOWN_PORT, cluster.token(), reason, SHUTDOWN_SECONDS)
        except OSError as error:
            print(f"{host} could not be asked to end: {error}", flush=True)
            done = False
    return done


def main() -> int:
    """Returns the exit code."""
    group = cluster.current_group()
    if group == cluster.DATA_GROUP:
        return run("train_data.py")
    if group != cluster.DNN_GROUP:
        print(f"no work for group {group!r}: the groups are {cluster.DATA_GROUP} and {cluster.DNN_GROUP}")
        return 2
    code = run("train_dnn.py")
    if int(os.environ.get("RANK", "0")) != 0:
        return code
    ended = end_data_hosts("training is complete" if code == 0 else f"training failed with exit code {code}")
    return code or int(not ended)


if __name__ == "__main__":
    sys.exit(main())

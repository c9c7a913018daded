"""Starts the agent of a data host that comes and goes, on a node that Slurm has given to the host alone.

    python -m headrace.engines.slurm.own_node RUN_DIR GROUP HOST ATTEMPT

The lead submits it as a job of its own when the host is wanted (`slurm_instances`), and cancels it when it is not. One
that gets its node when the run is over has nothing to do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.engines.host_order import read_host_order
from headrace.engines.slurm.handover import read_variables
from headrace.engines.slurm.slurm_instances import step_words
from headrace.instance.lifeline import ATTEMPT
from headrace.runs import Run, RunPaths


def main() -> None:
    """Entry point: becomes srun, unless the run is over."""
    root, group, host, attempt = sys.argv[1:]
    paths = RunPaths(Path(root))
    if Run(paths).over:
        return
    for name, value in read_variables(paths).items():
        if name not in os.environ or not name.startswith("SLURM"):
            os.environ[name] = value
    os.environ[ATTEMPT] = attempt
    words = step_words(paths, read_host_order(paths), group, host)
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()

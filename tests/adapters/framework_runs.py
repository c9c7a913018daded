"""Runs scripts in two real ranks, and reads what their module was shown.

A script imports `data.py`, that of docs/frameworks.md with an addition: `Net` notes the indices of every batch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
NOTES = """

import json
import os

PLAIN = Net.forward


def noted(self, x, labels):
    kind = "train" if self.training else "eval"
    with open(f"{kind}-{os.environ.get('RANK') or os.environ.get('LOCAL_RANK', '0')}", "a") as notes:
        print(json.dumps([int(row) for row in x[:, 0]]), file=notes)
    return PLAIN(self, x=x, labels=labels)


Net.forward = noted
"""


def examples() -> dict[str, str]:
    """Returns the scripts of docs/frameworks.md by their file names."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "frameworks.md").read_text(), re.DOTALL)
    return {re.split(r"[:\s]", block.removeprefix("# "))[0]: block for block in blocks}


# One after the other in the same ranks: to import a framework takes longer than to use it.
DRIVER = """\
import importlib, os, pathlib, signal, socket, sys

HERE = pathlib.Path(__file__).parent.absolute()
modules = sys.argv[1].split(",")
if modules[0]:  # two ranks with torchrun's variables, forks of a process that has imported these
    for module in modules:
        importlib.import_module(module)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    variables |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    ranks = set()
    for rank in range(2):
        if child := os.fork():
            ranks.add(child)
        else:
            os.environ |= variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            break
    else:
        while ranks:
            ended, status = os.wait()
            ranks.remove(ended)
            if status:
                for rank in ranks:
                    os.kill(rank, signal.SIGKILL)
                sys.exit(f"a rank ended with {os.waitstatus_to_exitcode(status)}")
        sys.exit()
for name in sys.argv[2:]:
    (HERE / name).mkdir(exist_ok=True)
    os.chdir(HERE / name)
    path = HERE / f"{name}.py"  # runpy would change sys.argv, with which Lightning starts its other ranks
    exec(compile(path.read_text(), path, "exec"), {"__name__": "__main__", "__file__": str(path)})
"""


def run(directory: Path, scripts: dict[str, str], *, ranks_with: str = "", seconds: float = 600) -> str:
    """Runs scripts in the same two ranks, one after the other. Returns what they printed.

    Args:
        directory: where each has a directory of its name, in which it runs and leaves its notes.
        scripts: their texts.
        ranks_with: modules that both ranks have imported, with commas between; else the first script starts the ranks.
        seconds: how long they may take.
    """
    (directory / "data.py").write_text(examples()["data.py"] + NOTES)
    (directory / "driver.py").write_text(DRIVER)
    for name, text in scripts.items():
        (directory / f"{name}.py").write_text(text)
    command = [sys.executable, str(directory / "driver.py"), ranks_with, *scripts]
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(directory)]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout + done.stderr


def notes(directory: Path, kind: str) -> list[list[list[int]]]:
    """Returns the batches that each of the two ranks was shown: [rank][step] -> indices."""
    return [[json.loads(line) for line in (directory / f"{kind}-{rank}").read_text().splitlines()] for rank in range(2)]


def epochs_of(batches: list[list[list[int]]], epochs: int) -> list[list[int]]:
    """Returns the sorted indices of each epoch over both ranks, which must have the same number of steps."""
    steps = len(batches[0]) // epochs
    assert [len(rank) for rank in batches] == [steps * epochs] * 2
    return [
        sorted(index for rank in batches for batch in rank[epoch * steps : (epoch + 1) * steps] for index in batch)
        for epoch in range(epochs)
    ]

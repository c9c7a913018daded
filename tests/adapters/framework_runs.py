"""Starts scripts with two real ranks, and reads what their module was shown.

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


def run(directory: Path, script: str, *, torchrun: bool, seconds: float = 600) -> str:
    """Runs a script with two ranks. Returns what it printed.

    Args:
        directory: where it runs, and leaves its notes.
        script: its text.
        torchrun: whether torchrun starts the ranks; else the script does.
        seconds: how long it may take.
    """
    (directory / "data.py").write_text(examples()["data.py"] + NOTES)
    (directory / "script.py").write_text(script)
    command = [sys.executable, "script.py"]
    if torchrun:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
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

"""Jobs of one small host of this machine, and processes that die while they start one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from headrace.job import Job
from patience import allowed

SCRIPT = """
import os, pathlib, time
with open({ledger!r}, "a") as ledger:
    ledger.write(os.environ["TRAINING_JOB_NAME"] + "\\n")
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.02)
"""


def local_job(folder: Path, name: str = "grid-0123456789ab", **fields: object) -> Job:
    """Returns a job that writes its name into `folder`/ledger, and ends when there is a `folder`/gate."""
    code = folder / "code"
    code.mkdir(parents=True, exist_ok=True)
    (code / "train.py").write_text(
        textwrap.dedent(SCRIPT).format(ledger=str(folder / "ledger"), gate=str(folder / "gate"))
    )
    number = zlib.crc32(str(folder).encode())
    prefix = f"127.{150 + number % 100}.{number // 100 % 250}"
    given: dict[str, object] = {
        "source_dir": str(code),
        "entry_point": "train.py",
        "instance_type": "ml.c5.xlarge",
        "instance_count": 1,
        "engines": {"local": {"address_prefix": prefix, "stop_grace": 3, "isolation": "none"}},
    }
    return Job(name, **{**given, **fields})  # type: ignore[arg-type]


def ledger(folder: Path) -> list[str]:
    """Returns the names of the jobs whose programs have begun, in their order."""
    path = folder / "ledger"
    return path.read_text().split() if path.exists() else []


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits until a condition holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < allowed(seconds), f"did not come within {seconds:g} s: {condition}"
        time.sleep(0.02)


def killed_in(code: str, *arguments: str) -> None:
    """Runs a program that kills itself with SIGKILL."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *arguments], timeout=120, env=os.environ)
    assert done.returncode == -9, done

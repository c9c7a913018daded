"""Plays the processes that work for a run beside its agents: `engine/NAME.json` says what, a sitecustomize puts it in.

A part is Python code; `run` is the run's directory, `log(text)` appends a line to `run/played`, `ready()` and
`fail(error)` report.
"""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest

from headrace.engines.local import engine

SITE = """
import headrace.hosting.helpers
headrace.hosting.helpers.__path__.insert(0, {folder!r})
"""
PLAYER = """
import json, os, pathlib, signal, sys, time
from headrace.child_python import ChildReport
run = pathlib.Path(sys.argv[1])
name = pathlib.Path(__file__).stem
def log(text):
    with open(run / "played", "a") as file:
        print(f"{name} {text}", file=file)
def ready():
    print(ChildReport(ready=True).line(), flush=True)
def fail(error, of_service=False):
    print(ChildReport(error=error, of_service=of_service).line(), flush=True)
    sys.exit(f"error: {error}")
if __name__ == "__main__":
    exec(json.loads((run / "engine" / f"{name}.json").read_text())["code"])
"""


def play(folder: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, str]) -> None:
    """From now on runs have these parts: name of the process to its code."""
    modules = folder / "played-modules"
    modules.mkdir(exist_ok=True)
    for name in parts:
        (modules / f"{name}.py").write_text(PLAYER)
    (folder / "sitecustomize.py").write_text(SITE.format(folder=str(modules)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    prepare = engine.prepare

    def prepared(job, plan, orders, paths, **more):
        prepare(job, plan, orders, paths, **more)
        (paths.root / "engine").mkdir(exist_ok=True)
        for name, code in parts.items():
            (paths.root / "engine" / f"{name}.json").write_text(json.dumps({"code": textwrap.dedent(code)}))
        if "collect" in parts:  # it is started only when there is something to collect
            (paths.host("algo-1") / "output" / "data" / "something").touch()

    monkeypatch.setattr(engine, "prepare", prepared)


def played(handle) -> list[str]:
    path = handle.paths.root / "played"
    return path.read_text().splitlines() if path.exists() else []

"""A controller that is killed at any instant and started again runs each line to its end exactly once.

Audited from outside: by the ledger of an engine that runs what is submitted as often as it is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from controller_process import Controllers
from effort import SOAK

LINES = 10
EVERY = 1 if SOAK else 31
"""At which instants it is killed."""

GRID = f"""
name: big
job: job.yaml
engine: ledger
lines: {{product: {{hyperparameters.lr: {list(range(LINES))}}}}}
limits: {{parallel: 4, starts_per_second: 1000}}
"""
JOB = "{source_dir: code, entry_point: train.py, instance_type: ml.c5.xlarge, instance_count: 1}"


def written(folder: Path, grid: str = GRID) -> Path:
    """Writes a grid's file and its job."""
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").touch()
    (folder / "job.yaml").write_text(JOB)
    (folder / "array.yaml").write_text(grid)
    return folder / "array.yaml"


@pytest.fixture(scope="module")
def controllers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controllers]:
    with Controllers(tmp_path_factory.mktemp("engine"), {}) as found:
        yield found


def audit(ledger: Path, lines: int = LINES) -> dict[str, Counter[str]]:
    """Returns how often each line was submitted and ended, by what the platform has."""
    counts: dict[str, Counter[str]] = {"submitted": Counter(), "ended": Counter()}
    for line in ledger.read_text().splitlines():
        what, name, _, status = line.split()
        key = name.split("-")[1]
        counts[what][key] += 1
        assert what != "ended" or status == "Completed", line
    assert len(counts["submitted"]) == len(counts["ended"]) == lines
    return counts


@pytest.mark.promise("grid", "a controller that is killed at any instant and restarted runs each line exactly once")
def test_killed_at_any_instant_and_started_again_each_line_runs_exactly_once(
    controllers: Controllers, tmp_path: Path
) -> None:
    file = written(tmp_path)
    kill_at, seen = 1 + os.getpid() % EVERY, Counter[str]()
    print(f"begins with instant {kill_at}, every {EVERY}")
    while True:
        home, ledger = tmp_path / f"home{kill_at}", tmp_path / f"ledger{kill_at}"
        code, _, name = controllers.run(file, home, ledger, kill_at)
        seen[name] += 1
        if code == 0:
            break
        assert code == -9, name
        assert controllers.run(file, home, ledger)[0] == 0, f"after it was killed {name} ({kill_at})"
        for what, counts in audit(ledger).items():
            assert set(counts.values()) == {1}, f"killed {name} ({kill_at}): {what}: {counts}"
        kill_at += EVERY
    assert sum(seen.values()) > LINES * 11 / EVERY, seen
    if SOAK:
        for what in ("intend", "started", "ended", "start", "begin", "take", "finish"):
            assert seen[f"before {what}"], seen
            assert seen[f"after {what}"], seen


def test_killed_again_and_again_it_comes_to_its_end(controllers: Controllers, tmp_path: Path) -> None:
    file, home, ledger = written(tmp_path), tmp_path / "home", tmp_path / "ledger"
    kills = 0
    while controllers.run(file, home, ledger, 21)[0] == -9:
        kills += 1
        assert kills < 200, "it does not come forward"
    assert kills > 3
    for counts in audit(ledger).values():
        assert set(counts.values()) == {1}


LOCAL = """
name: here
job: job.yaml
lines: {product: {hyperparameters.lr: [0, 1, 2]}}
limits: {starts_per_second: 1000, local_hosts: 2}
"""
SCRIPT = """
import os, time
def tell(what):
    with open(LEDGER, "a") as ledger:
        ledger.write(f"{what} {os.environ['TRAINING_JOB_NAME']} - Completed\\n")
tell("submitted")
time.sleep(0.5)
tell("ended")
"""
PER_LINE = 8
"""Instants of a line: before and after three writes and a call outside."""


def test_real_jobs_of_this_machine_run_once_too(controllers: Controllers, tmp_path: Path) -> None:
    file = written(tmp_path, LOCAL)
    first = os.getpid() % PER_LINE + 5
    for kill_at in range(first, 4 + 3 * PER_LINE, 1 if SOAK else 3 * PER_LINE):
        home, ledger = tmp_path / f"home{kill_at}", tmp_path / f"ledger{kill_at}"
        (tmp_path / "code" / "train.py").write_text(SCRIPT.replace("LEDGER", repr(str(ledger))))
        code, _, name = controllers.run(file, home, ledger, kill_at)
        assert code == -9, name
        assert controllers.run(file, home, ledger)[0] == 0, f"after it was killed {name} ({kill_at})"
        for what, counts in audit(ledger, 3).items():
            assert set(counts.values()) == {1}, f"killed {name} ({kill_at}): {what}: {counts}"

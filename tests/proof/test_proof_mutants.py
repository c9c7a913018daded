"""The proof proves something: it fails on builds whose exactly-once machinery is switched off.

A mutant is a copy of the package with one text replaced. To adapt one after a change of the code: put the lines that do
the thing into `old` (they must occur once in the file), the same lines without it into `new`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from effort import SOAK
from training import HERE

import headrace

ROOT = HERE.parent.parent
SIMULATION = "../feed/test_feed_simulated.py"


@dataclass(frozen=True)
class Mutant:
    """One build.

    Attributes:
        name: what it lacks.
        file: of the package.
        old, new: the text that is replaced, and with what.
        test: what must fail on it, a node of this folder.
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    def build(self, directory: Path) -> Path:
        """Makes the build. Returns its folder for PYTHONPATH."""
        shutil.copytree(Path(headrace.__file__).parent, directory / "headrace")
        path = directory / "headrace" / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, (
            f"the patch of the mutant {self.name!r} does not apply to {self.file}: adapt it"
        )
        path.write_text(text.replace(self.old, self.new))
        return directory


MUTANTS = [
    Mutant(
        "retry",
        "feed/client/scheduler.py",
        "                request.slice.requests.remove(request)\n        return owed",
        "                pass\n        return owed",
        "test_proof_essentials.py::test_what_killed_workers_owed_is_made_by_others",
    ),
]
if SOAK:
    MUTANTS += [
        Mutant(
            "de-duplication",
            "feed/client/worker_pool.py",
            "request = self.outstanding.pop(number, None)",
            "request = self.outstanding.pop(next(iter(self.outstanding), 0), None)",
            "test_proof_essentials.py::test_an_answer_that_comes_twice_counts_once",
        ),
        Mutant(
            "dropping what nobody waits for",
            "feed/client/exchange.py",
            "        elif request.unwanted:\n            self._stats.duplicates_dropped",
            "        elif False:\n            self._stats.duplicates_dropped",
            SIMULATION,
        ),
        Mutant(
            "keeping slabs that are still written to",
            "feed/batch/slab.py",
            "pooled.retired = pooled.writers > 0\n",
            "pooled.retired = False\n",
            "../feed/test_feed_slabs.py",
        ),
        Mutant(
            "leaving slabs that a lost host may write to",
            "feed/client/exchange.py",
            "                self._assembly.ledger.taint(request.slab)\n",
            "                pass\n",
            "../feed/test_feed_session.py",
        ),
        Mutant(
            "sums of payloads",
            "feed/wire/frames.py",
            "if chunk.kind == DATA and chunk.total != _stamped(*chunk[:2], self._sum.intdigest(), self._seal):\n",
            "if False:\n",
            "test_proof_proxy.py::test_bad_ways_cost_time_and_nothing_else_even_if_there_is_no_good_one",
        ),
        Mutant(
            "a lane's end counts when all before it was handed out",
            "feed/plan/lane_pass.py",
            "        if draw.rows or slot.held:\n",
            "        if draw.rows:\n",
            "../feed/test_feed_slots.py::test_what_is_held_while_another_slot_is_waited_for_does_not_count_as_consumed",
        ),
        Mutant(
            "signs of life",
            "feed/wire/framed_connection.py",
            "        return self._frames_received + self.bytes_received // LIVELY_BYTES\n",
            "        return self.bytes_received\n",
            "test_proof_proxy.py::test_hosts_behind_broken_ways_hold_nobody_up_while_another_serves",
        ),
    ]


@pytest.mark.timeout(330)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"without {mutant.name}")
def test_a_build_without_it_does_not_pass(mutant: Mutant, tmp_path: Path) -> None:
    environment = dict(os.environ) | {
        "PYTHONPATH": str(mutant.build(tmp_path / "mutant")),
        "PROOF_STALL_SECONDS": "5",  # what hangs on such a build need not hang for long
        "HEADRACE_SOAK": "0",
        "HEADRACE_SCHEDULES": "4000",  # the first failure ends it
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / mutant.test)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, f"it passes, or does not run: {done.stdout}{done.stderr}"
    assert "1 failed" in done.stdout
    assert "ImportError" not in done.stdout
    assert "SyntaxError" not in done.stdout
    print(done.stdout[-3000:])

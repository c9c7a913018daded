"""What a step is: times in, steps out."""

from __future__ import annotations

import json
import subprocess
import sys

from headrace.feed.metrics import step_timing
from headrace.feed.metrics.step_timing import Step, StepTiming


def told(step: Step | None) -> tuple[float, float, float, int, bool] | None:
    return None if step is None else (step.wait, step.length, step.cpu, step.rows, step.first)


def test_a_step_lasts_from_one_next_to_the_following_one() -> None:
    timing = StepTiming(Step)
    timing.begin_pass()
    assert timing.end(10.0) is None
    timing.ask(10.0, cpu=1.0)
    timing.got(12.0, cpu=1.5, rows=8)
    assert told(timing.end(15.0)) == (2.0, 5.0, 0.5, 8, True)
    timing.ask(16.0, cpu=2.0)  # what lies between is no step
    timing.got(16.5, cpu=2.25, rows=4)
    assert told(timing.end(17.0)) == (0.5, 1.0, 0.25, 4, False)
    timing.ask(17.0, cpu=3.0)  # finds no batch
    assert timing.end(90.0) is None


def test_a_step_whose_loop_was_left_has_no_end_and_the_next_pass_begins_with_a_first_step() -> None:
    timing = StepTiming(Step)
    for now in (0.0, 100.0):
        timing.begin_pass()
        timing.ask(now, cpu=0.0)
        timing.got(now + 1, cpu=0.0, rows=1)
        assert told(timing.end(now + 2)) == (1.0, 2.0, 0.0, 1, True)
        timing.ask(now + 2, cpu=0.0)
        timing.got(now + 3, cpu=0.0, rows=1)
    timing.begin_pass()
    assert timing.end(1000.0) is None


def test_a_step_that_has_ended_does_not_change_with_the_next_one() -> None:
    timing = StepTiming(Step)
    timing.ask(0.0, cpu=0.0)
    before = timing.got(1.0, cpu=0.0, rows=3)
    timing.end(2.0)
    timing.ask(2.0, cpu=0.0)
    timing.got(9.0, cpu=0.0, rows=5)
    timing.end(20.0)
    assert told(before) == (1.0, 2.0, 0.0, 3, True)


def test_the_file_that_the_probe_loads_needs_the_standard_library_only() -> None:
    code = f"""
import json, runpy, sys
runpy.run_path({step_timing.__file__!r})
print(json.dumps([name for name in sys.modules if name.partition(".")[0] in ("headrace", "numpy", "torch", "msgspec")]))
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == []

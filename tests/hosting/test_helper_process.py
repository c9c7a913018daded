"""A process beside the agents, as the supervisor sees it."""

from __future__ import annotations

import os
import selectors
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.hosting.supervision import helper_processes
from headrace.hosting.supervision.helper_processes import HelperProcess
from headrace.processes.spawn import spawn
from headrace.runs import RunPaths
from patience import allowed

REPORTS = """
import time
from headrace.child_python import ChildReport
ChildReport(error="an object is gone").send()
time.sleep(60)
"""


def test_one_that_has_reported_an_error_has_failed_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawned(argv: list[str], **others: Any) -> Any:
        return spawn([sys.executable, "-c", REPORTS], **others)

    monkeypatch.setattr(helper_processes, "spawn", spawned)
    run = RunPaths(tmp_path)
    run.engine.mkdir()
    with selectors.DefaultSelector() as selector:
        helper = HelperProcess("serve_channels", run, selector)
        deadline = time.monotonic() + allowed(20.0)
        while not helper.failed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert helper.failed
        assert not helper.ended
        assert str(helper.failure()).endswith("an object is gone")
        helper.kill()
        helper.finish(os.waitpid(helper.pid, 0)[1])

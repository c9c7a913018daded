"""The start of a host in namespaces, when the process that makes them misbehaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.hosting.isolation.probing import TRIED
from patience import allowed

STAYS = """
import os, pathlib, subprocess
from headrace.errors import HeadraceError
from headrace.hosting.isolation import namespace_starter
from headrace.hosting.isolation.network_layout import Layout
from headrace.hosting.supervision.cleanup import remove_scratch
from headrace.processes.bootstrap import become_subreaper
from headrace.child_python import ChildReport

namespace_starter.HOSTS_SECONDS = 0.3
become_subreaper()
layout = Layout(False, False, False, "", (), "", (), own_network=False)
starter = namespace_starter.NamespaceStarter(pathlib.Path("layout"), layout, "run")
start = starter.prepare("algo-1", ["agent"])
maker = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE)
ChildReport(ready=True, pid=int(maker.stdout.readline())).send(start.pass_fds[0])
try:
    starter.agent(start, maker)
except HeadraceError as error:
    print(error.message, "|", error.hint)
try:
    print("left", os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("nothing is left")
remove_scratch("run")
"""


def test_a_process_that_made_a_host_and_stays_is_an_error_and_is_ended_with_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    worked_before = tmp_path / TRIED
    worked_before.write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", STAYS], capture_output=True, text=True, timeout=allowed(30), check=False
    )
    assert done.stdout.splitlines() == [
        "algo-1 could not be isolated: the process that made its namespaces did not end within 0.3 s | "
        "`isolation: none` among the options of the engine does without",
        "nothing is left",
    ], done.stderr
    assert not worked_before.exists(), "the next run tries anew what works on this machine"

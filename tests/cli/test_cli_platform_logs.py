"""`headrace logs RUN --platform`: what the engine has of a run, beside its record."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import Cli

from headrace.runs import RunPaths, create_run
from headrace.runs.store import COPIED
from installed_engines import install_engine

SILENT = '"""An engine without logs."""\n'


def made(cli: Cli, engine: str = "local") -> RunPaths:
    paths = create_run("j", engine=engine, runs=cli.runs, created=1_795_201_200.0)
    paths.engine.mkdir(exist_ok=True)
    (paths.engine / "supervisor.log").write_bytes(b"a warning\nd\xe9j\xe0")
    (paths.engine / "empty.log").touch()
    (paths.engine / "ticket.json").write_text("7")
    return paths


@pytest.mark.promise("engines", "what the platform has of a run, on local")
def test_what_the_engine_has_of_a_run_is_shown_beside_its_record(cli: Cli) -> None:
    made(cli)
    shown = cli("logs", "j", "--platform")
    assert (shown.returncode, shown.stdout) == (0, "==> engine/supervisor.log <==\na warning\nd\ufffdj\ufffd\n")
    listed = json.loads(cli("logs", "j", "--platform", "--output", "json").stdout)
    assert listed == [{"name": "engine/supervisor.log", "text": "a warning\nd\ufffdj\ufffd"}]


def test_of_a_log_without_end_the_end_is_shown(cli: Cli) -> None:
    paths = made(cli)
    (paths.engine / "supervisor.log").write_bytes(b"first\n" + b"x" * (4 << 20) + b"\nlast\n")
    shown = cli("logs", "j", "--platform").stdout
    assert "(the last 4194304 of 4194316 bytes)" in shown
    assert "first" not in shown
    assert shown.endswith("\nlast\n")


def test_what_chooses_among_lines_is_refused(cli: Cli) -> None:
    made(cli)
    refused = cli("logs", "j/dnn", "--platform", "-f", "--tail", "0")
    assert refused.returncode == 2
    assert "--platform does not go with a group, host or rank, --follow, --tail" in refused.stderr
    assert "hint: headrace logs j --platform" in refused.stderr


def test_an_engine_without_logs_is_told_but_a_copy_of_a_record_needs_none(cli: Cli, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_engine(site, "silent", SILENT)
    cli.env["PYTHONPATH"] += os.pathsep + str(site)
    paths = made(cli, "silent")
    told = cli("logs", "j", "--platform")
    assert told.returncode == 2
    assert "error: the engine 'silent' has no logs of its own" in told.stderr
    assert f"hint: headrace logs {paths.id} shows" in told.stderr
    copied = {"place": "s3://bucket/runs/j", "leader": "a"}
    (paths.root / COPIED).write_text(json.dumps(copied))
    assert "a warning" in cli("logs", "j", "--platform").stdout, "what was copied is all that there is"

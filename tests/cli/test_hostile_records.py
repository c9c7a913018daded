"""Whatever lies in the place of a record's files, every command over runs ends in seconds, without a traceback."""

from __future__ import annotations

import pytest
from command_line import Cli
from effort import SOAK
from test_foreign_records import commands_of_runs

from hostile_records import KINDS, hostile_runs, written

SECONDS = 30


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_ends_over_records_of_anything(cli: Cli, kind: str) -> None:
    written(cli.runs, "whole")
    lines = [line for line in commands_of_runs() if line[0] not in ("stop", "fetch")]
    first = [*KINDS].index(kind)
    for number, paths in enumerate(hostile_runs(cli.runs, kind)):
        for line in lines if SOAK else [lines[(first + number) % len(lines)]]:
            done = cli(*[paths.id if word == "RUN" else word for word in line], timeout=SECONDS)
            assert "Traceback" not in done.stderr, (line, done.stderr)
            assert not set("\x1b\x9b\u202e") & set(done.stdout + done.stderr), line
    for line in (["ps", "--all"], ["ps", "--all", "--output", "json"]):
        done = cli(*line, timeout=SECONDS)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert "whole-" in done.stdout, "the runs beside it are there"
        assert not set("\x1b\x9b\u202e") & set(done.stdout + done.stderr)

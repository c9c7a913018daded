"""What headrace logs of itself: on the terminal with -v only, in the run's files always, and in what a job starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from command_line import Cli

from headrace.runs import Run

SCRIPT = """
    import logging, os
    import headrace
    print("variable", os.environ.get("HEADRACE_LOG"))
    logging.getLogger("headrace.feed.client").debug("a record of the rank")
"""


def files_of(run: Run) -> tuple[str, str]:
    """The agent's log of the run, and what the supervisor wrote."""
    [agent] = run.paths.root.glob("logs/dnn/*/agent.log")
    return agent.read_text(), (run.paths.engine / "supervisor.log").read_text()


@pytest.mark.parametrize("options", [(), ("-v",), ("-vv",)], ids=" ".join)
def test_verbose_shows_what_headrace_does_everywhere_and_else_nothing_of_it_is_shown(
    cli: Cli, job_file: Callable[..., str], options: tuple[str, ...]
) -> None:
    if options == ("-v",):
        cli.env["HEADRACE_LOG"] = "error"  # the option wins
    done = cli(*options, "run", job_file(SCRIPT))
    assert done.returncode == 0, done.stderr
    [run] = (Run.open(path.name, cli.runs) for path in cli.runs.iterdir())
    agent, supervisor = files_of(run)
    level = {"-v": "info", "-vv": "debug"}.get(options[0]) if options else None

    assert f"[0] variable {level}" in done.stdout
    assert ("a record of the rank" in done.stdout) == (level == "debug")
    assert "o stopping: the job is complete" in agent  # whatever is asked for
    assert ("[agent] stopping: the job is complete" in done.stdout) == (level is not None)
    assert ("debug headrace.agent" in agent) == (level == "debug")
    assert ("INFO headrace.hosting.supervision.supervisor[" in supervisor) == (level is not None)
    if level is None:
        assert "headrace.agent" not in done.stdout
        assert supervisor == done.stderr == ""


def test_a_variable_that_is_not_understood_is_told_once_by_a_command(cli: Cli) -> None:
    cli.env["HEADRACE_LOG"] = "loud"
    done = cli("ps")
    assert done.returncode == 0
    [line] = done.stderr.splitlines()
    assert "HEADRACE_LOG: 'loud' is not understood; write one of debug, info, warning, error" in line

"""Help, version, start-up cost, and what a user's mistakes look like."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from command_line import Cli

from headrace import __version__
from headrace.cli.main import COMMANDS, invoke
from headrace.runs import create_run

HEAVY = {"torch", "grpc", "pydantic", "rich", "numpy", "msgspec", "psutil", "yaml", "asyncio", "tensorflow"}


def test_help_costs_at_most_0_4_seconds_of_cpu(cli: Cli) -> None:
    cli("--help")  # byte code is compiled once
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = cli("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 0.4


@pytest.mark.promise("architecture", "`headrace --help` loads no heavy library")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"], ["compare", "-h"], ["feed", "serve", "-h"]]
)
def test_help_loads_no_heavy_library(cli: Cli, arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from headrace.cli.main import invoke\n"
        "code = invoke(sys.argv[1:])\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=cli.env, capture_output=True, text=True, timeout=30, check=True
    )
    assert not HEAVY & {name.partition(".")[0] for name in result.stderr.split()}
    assert "click" in result.stderr.split()


def test_the_top_help_names_every_command_and_the_exit_codes(cli: Cli) -> None:
    text = cli("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in text
    assert "130 stopped" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_has_an_example(cli: Cli, name: str) -> None:
    result = cli(name, "--help")
    assert result.returncode == 0
    assert f"headrace {name} " in result.stdout.partition("Examples:")[2]


def test_version(cli: Cli) -> None:
    assert cli("--version").stdout == f"headrace {__version__}\n"


@pytest.mark.promise("runs", "exit code 2: a mistake; nothing was started")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["rn"], "No such command 'rn': did you mean 'run'?"),
        (["run"], "Missing argument 'JOB'"),
        (["run", "no-such.yaml"], "no-such.yaml"),
        (["plan", "no-such.yaml"], "no-such.yaml"),
        (["report", "x", "--output", "xml"], "'xml' is not one of"),
        (["report", "nobody"], "no run 'nobody'"),
        (["logs", "nobody/dnn"], "no run 'nobody'"),
        (["logs", "a/b/c/d/e"], "expected RUN[/group[/host[/rank]]]"),
        (["stop", "nobody"], "no run 'nobody'"),
        (["compare", "nobody", "somebody"], "no run 'nobody'"),
        (["compare"], "Missing argument"),
    ],
)
def test_a_mistake_is_an_error_a_hint_and_exit_code_2(cli: Cli, arguments: list[str], error: str) -> None:
    result = cli(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    first, *others = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert any(line.startswith("hint: ") for line in others)
    assert "Traceback" not in result.stderr
    assert not cli.runs.exists()


def test_a_field_of_the_job_file_that_is_given_as_an_option_is_answered_with_how_to_give_it(cli: Cli) -> None:
    for command in (["run", "job.yaml"], ["plan", "job.yaml"]):
        told = cli(*command, "--job-name", "mine").stderr
        assert "hint: a field of the job file is given as `--set job_name=...`" in told
    for other in (["run", "job.yaml", "--no-such", "x"], ["ps", "--job-name", "mine"]):
        assert "--set" not in cli(*other).stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--epochs", "3"], "`--set hyperparameters.epochs=3`"),
        (["--batch-size=8"], "`--set hyperparameters.batch-size=8`"),
        (["--note", "a b", "--quiet"], "`--set hyperparameters.note='a b'`"),
        (["--flag", "--quiet"], "`--set hyperparameters.flag=...`"),
        (["--shift", "-1"], "`--set hyperparameters.shift=-1`"),
        (["--dry-run"], "`headrace plan JOB`"),
    ],
)
def test_an_option_of_the_program_or_of_other_tools_is_answered_with_how_it_is_given_here(
    capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    for command in ("run", "plan"):
        assert invoke([command, "job.yaml", *arguments]) == 2
        answer = capsys.readouterr().err
        assert hint in answer
        assert "Did you mean" not in answer, "one answer"
    assert invoke(["run", "job.yaml", "--detatch"]) == 2
    answer = capsys.readouterr().err
    assert re.search("Did you mean '?--detach'?[?]", answer)  # click 8.2 sets no quotes
    assert "hyperparameters" not in answer


def test_all_problems_of_a_job_file_are_shown_one_a_line_and_nothing_starts(
    cli: Cli, job_file: Callable[..., str]
) -> None:
    path = job_file("", extra="entry_pint: x.py\nenvironment: 7\n")
    for command in ("run", "plan"):
        result = cli(command, path)
        assert result.returncode == 2
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 2
        assert all(f"{Path(path).name}:" in line for line in errors)
        assert "entry_pint" in errors[0]
        assert "Traceback" not in result.stderr
    assert not cli.runs.exists()


def test_compare_needs_two_runs(cli: Cli) -> None:
    create_run("one", runs=cli.runs)
    result = cli("compare", "one")
    assert result.returncode == 2
    assert result.stderr.startswith("error: a comparison needs two runs or more, not 1\nhint: ")


def test_a_run_with_a_damaged_header_is_an_error_and_no_traceback(cli: Cli) -> None:
    paths = create_run("one", runs=cli.runs)
    paths.header.write_text("{")
    for command in ("report", "logs", "stop"):
        result = cli(command, paths.id)
        assert (result.returncode, result.stderr.startswith("error: ")) == (2, True)
        assert "Traceback" not in result.stderr


def test_a_missing_run_suggests_the_nearest(cli: Cli) -> None:
    create_run("heterogeneous", runs=cli.runs)
    assert "hint: did you mean heterogeneous" in cli("report", "heterogenous").stderr


def test_the_entry_point_of_the_package_exists() -> None:
    value = re.search(r'^headrace = "(.+)"$', (Path(__file__).parents[2] / "pyproject.toml").read_text(), re.MULTILINE)
    assert value is not None
    assert callable(EntryPoint("headrace", value[1], "console_scripts").load())


def test_ctrl_c_while_the_command_is_imported_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2] / 'src'}"}
    done = subprocess.run([sys.executable, "-m", "headrace"], env=env, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["bogus"], 2),  # click's own
        (["run", "nowhere.yaml"], 2),  # headrace's
        (["report", "nowhere"], 2),
        (["feed"], 2),  # help, as nothing is asked
        (["ps"], 0),
        (["report", "one", "--output", "json"], 0),
    ],
)
@pytest.mark.parametrize("broken", ["full", "gone"])
def test_what_standard_error_does_not_take_decides_no_exit_code(
    arguments: list[str], code: int, broken: str, cli: Cli
) -> None:
    create_run("one", runs=cli.runs)
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") if broken == "full" else open(writing, "wb") as err:  # noqa: PTH123
        child = cli.start(*arguments, out=subprocess.DEVNULL, err=err.fileno())
        assert child.wait(30) == code
    if broken == "full":
        os.close(writing)


@pytest.mark.parametrize(("out", "code"), [("full", 1), ("gone", 141)])
def test_an_answer_that_cannot_be_written_is_a_failure_also_when_nobody_can_be_told(
    out: str, code: int, cli: Cli
) -> None:
    create_run("one", runs=cli.runs)
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full, open(writing, "wb") as gone:  # noqa: PTH123
        for arguments in (["ps"], ["report", "one"], ["--help"], ["--version"], ["schema"]):
            child = cli.start(*arguments, out=(full if out == "full" else gone).fileno(), err=full.fileno())
            assert child.wait(30) == code, arguments


def test_an_output_that_cannot_be_written_is_an_error_not_a_traceback(cli: Cli) -> None:
    create_run("one", runs=cli.runs)
    with Path("/dev/full").open("w") as full:
        child = cli.start("report", "one", "--output", "json", out=full.fileno(), err=subprocess.PIPE)
        _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (1, "error: input/output: No space left on device\n")
    assert json.loads(cli("report", "one", "--output", "json").stdout)["job_name"] == "one"


def test_python_m_headrace_is_the_command() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"], env=env, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == f"headrace {__version__}\n"

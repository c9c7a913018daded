"""`headrace stacks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runs import Selector, Stream

SECONDS = 30.0  # for one process


@click.command("stacks", short_help="Show where the programs of a run are: the Python stack of every thread.")
@click.argument("selector", metavar="RUN[/GROUP[/HOST[/RANK]]]")
@output_option
def command(selector: str, output: str) -> None:
    """Show the Python stacks of the programs of RUN that run on this machine, with py-spy, which stops each of them
    for some milliseconds. For a run that says nothing any more: what does each rank wait for?

    Programs of other machines are shown there: type this command on the node (Slurm), or `py-spy dump --pid 1` in the
    pod (Kubernetes).

    \b
    Examples:
      headrace stacks my-job
      headrace stacks my-job/dnn/algo-1/0
      headrace stacks my-job --output json
    """
    from headrace.cli.options import echo_json, open_run
    from headrace.errors import UsageError
    from headrace.runs import parse_selector

    name, chosen = parse_selector(selector)
    run = open_run(name)
    py_spy = _py_spy()
    found = [
        {"stream": str(stream), "pid": pid, "command": command, "stacks": _stacks(py_spy, pid)}
        for stream, pid, command in sorted(_programs(run.id, chosen))
    ]
    if not found:
        elsewhere = "type this on the machine where it runs; `headrace status` says which"
        hint = "it has ended" if run.finished else elsewhere
        raise UsageError(f"no Python program of {selector} runs on this machine", hint)
    if output == "json":
        echo_json({"run_id": run.id, "programs": found})
        return
    for each in found:
        click.secho(f"{each['stream']}  pid {each['pid']}  {each['command']}", bold=True)
        click.echo(f"{each['stacks']}\n")


def _py_spy() -> str:
    import shutil
    import sys
    from pathlib import Path

    from headrace.errors import UsageError
    from headrace.install_hint import install_hint

    beside = Path(sys.executable).with_name("py-spy")
    path = str(beside) if beside.exists() else shutil.which("py-spy")
    if path is None:
        raise UsageError("py-spy is not installed, which reads the stacks of other processes", install_hint("stacks"))
    return path


def _programs(run_id: str, chosen: Selector) -> Iterator[tuple[Stream, int, str]]:
    """Lists the Python programs of a run by their variables: stream, pid and command line."""
    from pathlib import Path

    import psutil

    from headrace.feed.metrics.metric_file import METRICS_VARIABLE
    from headrace.instance.lifeline import RUN_ID
    from headrace.runs.log_lines import stream_of

    for process in psutil.process_iter():
        try:
            variables = process.environ()
            if variables.get(RUN_ID) != run_id or METRICS_VARIABLE not in variables:
                continue
            stream = stream_of(Path(variables[METRICS_VARIABLE]))
            if chosen.matches(stream) and "python" in Path(process.exe()).name:
                yield stream, process.pid, " ".join(process.cmdline())
        except psutil.Error:  # it has ended, or belongs to another user
            continue


def _stacks(py_spy: str, pid: int) -> str:
    """Returns the stacks of a process, or why they cannot be had, in py-spy's words."""
    import subprocess

    try:
        done = subprocess.run(
            [py_spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"py-spy has not answered within {SECONDS:.0f} s"
    return (done.stdout if done.returncode == 0 else done.stderr).strip()

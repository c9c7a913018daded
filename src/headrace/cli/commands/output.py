"""`headrace logs` and `headrace stacks`: what the programs of a run wrote, and where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runs import LogLine, Selector, Stream


@click.command("logs", short_help="Show or follow what the programs of a run wrote.")
@click.argument("selector", metavar="RUN[/GROUP[/HOST[/RANK]]]")
@click.option("-f", "--follow", is_flag=True, help="Wait for further lines until the run has finished.")
@click.option("--grep", "pattern", default="", metavar="PATTERN", help="Only lines that match this regular expression.")
@click.option("--since", metavar="TIME", help="Only lines since then: 30s, 10m, 2h, 1d (ago), or 2026-11-20T19:01:02Z.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Of the existing lines, only the last N.")
@click.option("--timestamps", is_flag=True, help="Show when each line was written (UTC).")
@click.option("--agent", is_flag=True, help="Also the agents' own notes: what headrace did on each host.")
@click.option(
    "--platform", is_flag=True, help="Show instead what the engine has of RUN: its own logs, the scheduler's."
)
@output_option
def logs(
    selector: str,
    follow: bool,
    pattern: str,
    since: str | None,
    tail: int | None,
    timestamps: bool,
    agent: bool,
    platform: bool,
    output: str,
) -> int:
    """Show the lines of all programs of a run, or of some, by time.

    RUN is a run id or a job name (its newest run). RANK is a global rank, `feed` or `agent`; GROUP/HOST[RANK], as
    the lines show it, works too. The agents' notes are shown with --agent, or where RANK is `agent`. With --output json
    every line is a JSON object.

    \b
    Examples:
      headrace logs my-job
      headrace logs my-job/dnn_group/algo-1/0 -f
      headrace logs my-job/data_group --timestamps --since 10m
      headrace logs my-job --grep 'loss|error' --tail 20 -f
      headrace logs my-job --agent
      headrace logs my-job --platform
    """
    if platform:
        given = {
            "--follow": follow,
            "--grep": pattern,
            "--since": since,
            "--tail": tail is not None,
            "--timestamps": timestamps,
            "--agent": agent,
        }
        _show_platform(selector, [name for name, value in given.items() if value], output)
        return 0
    from headrace.cli.log_filter import LogFilter
    from headrace.cli.options import open_run
    from headrace.cli.views.terminal import Terminal
    from headrace.runs import parse_selector
    from headrace.runs.event_text import not_started
    from headrace.runs.run_paths import AGENT

    name, chosen = parse_selector(selector)
    run = open_run(name)
    terminal = Terminal.standard()

    shown = 0

    def show(line: LogLine) -> None:
        nonlocal shown
        shown += 1
        if output == "json":
            terminal.write(json_line(line))
        else:
            terminal.log(line, timestamps)

    wanted = LogFilter(show, pattern, since, tail)

    def idle() -> None:
        wanted.caught_up()
        terminal.flush()

    every = agent or chosen.name == AGENT
    lines = run.logs(chosen, follow=follow, on_idle=idle, last=None if pattern else tail)
    wanted.take(line for line in lines if every or line.stream.name != AGENT)
    idle()
    if not (shown or every or pattern or since or tail is not None):
        why = not_started(run.state()) or "no program has written anything"
        click.echo(
            f"headrace: {why}. --agent shows what headrace did on the hosts, --platform what its engine has", err=True
        )
    for damage in run.damage:
        click.echo(f"headrace: {damage}", err=True)
    if follow:
        state = run.state()
        end = f"headrace: {run.id}: {state.secondary_status.value}"
        click.echo(end + (f": {state.cause}" if state.cause else ""), err=True)
    return 0


def _show_platform(selector: str, given: list[str], output: str) -> None:
    """Shows what the engine of a run has of it.

    Args:
        selector: the run.
        given: other options, which choose among lines.
        output: as of the command.
    """
    from headrace import engines
    from headrace.cli.options import echo_json, open_run
    from headrace.errors import UsageError
    from headrace.runs import parse_selector
    from headrace.runs.log_lines import Selector

    name, chosen = parse_selector(selector)
    if chosen != Selector():
        given = ["a group, host or rank", *given]
    if given:
        raise UsageError(f"--platform does not go with {', '.join(given)}", hint=f"headrace logs {name} --platform")
    documents = engines.logs(open_run(name))
    if output == "json":
        echo_json([document._asdict() for document in documents])
        return
    for document in documents:
        click.echo(f"==> {document.name} <==")
        click.echo(document.text.rstrip("\n"))
    if not documents:
        click.echo(f"headrace: the engine has written nothing about {name}", err=True)


def json_line(line: LogLine) -> str:
    """Returns a log line as one JSON object on one line."""
    import msgspec

    from headrace.runs.log_lines import KINDS

    where = line.stream
    fields = {"t": line.t, "group": where.group, "host": where.host, "stream": where.name}
    return msgspec.json.encode({**fields, "kind": KINDS[line.kind], "text": line.text}).decode()


SECONDS = 30.0  # for one process


@click.command("stacks", short_help="Show where the programs of a run are: the Python stack of every thread.")
@click.argument("selector", metavar="RUN[/GROUP[/HOST[/RANK]]]")
@output_option
def stacks(selector: str, output: str) -> None:
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

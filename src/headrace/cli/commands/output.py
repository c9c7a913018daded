"""`headrace logs` and `stacks`: what the programs of a run wrote, and where they are; `files` and `fetch`: what a run
made, and the record of a run elsewhere.
"""

from __future__ import annotations

import re
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from headrace.cli.options import age_seconds, output_option
from headrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.insight.render.document import Document
    from headrace.instance.storage import Store
    from headrace.runs import LogLine, RunPaths, Selector, Stream
    from headrace.runs.disk_use import RunFile
    from headrace.runs.segment_reader import Copied, RecordCopy


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

    matches, earliest = _compiled(pattern), float("-inf") if since is None else parse_since(since, time.time())
    first: deque[LogLine] | None = None if tail is None else deque(maxlen=tail)  # of the lines that are there already

    def idle() -> None:
        nonlocal first
        held, first = first, None
        for line in held or ():
            show(line)
        terminal.flush()

    every = agent or chosen.name == AGENT
    for line in run.logs(chosen, follow=follow, on_idle=idle, last=None if pattern else tail):
        if (every or line.stream.name != AGENT) and line.t >= earliest and matches.search(line.text):
            if first is None:
                show(line)
            else:
                first.append(line)
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


@click.command("files", short_help="List what the programs of a run wrote, and copy it out.")
@click.argument("run")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--to", type=click.Path(), metavar="DIR", help="Copy the files to DIR, which must not hold them yet.")
@output_option
def files(run: str, patterns: tuple[str, ...], to: str | None, output: str) -> None:
    """List the files that the programs of RUN wrote and that lie in its directory on this machine.

    Of every host: what it added or changed below its working directory (`code`), its `model`, `output` and
    `checkpoints`; then the model and output of the run, unless `output_path` names another place. What a host wrote to
    its own /tmp is gone; `keep` in the job file keeps it.

    PATTERN chooses files by host and name: `algo-1/code/*.csv`, `*/results/*`; a `*` stands for slashes, too.

    \b
    Examples:
      headrace files my-job
      headrace files my-job '*/results/*' --to results
      headrace files my-job --output json
    """
    import fnmatch
    import os
    from pathlib import Path

    from headrace.cli.options import answer, open_run
    from headrace.runs.disk_use import files_of

    paths = open_run(run).paths
    files = [
        file
        for file in files_of(paths)
        if not patterns or any(fnmatch.fnmatchcase(_name(file), pattern) for pattern in patterns)
    ]
    there = [] if to is None else [path for file in files if os.path.lexists(path := Path(to, _name(file)))]
    if there:
        more = f", and {len(there) - 1} more are" if len(there) > 1 else ""
        raise UsageError(f"{there[0]} is there already{more}", "no file is written over: copy to another DIR")
    copies = [None if to is None else _copy(file, Path(to)) for file in files]
    listed = [
        {"host": file.host, "name": file.name, "path": str(copy or file.path), "bytes": file.bytes}
        for file, copy in zip(files, copies, strict=True)
    ]
    value = {"run_id": paths.id, "run_dir": str(paths.root), "files": listed}
    answer(value, output, lambda: _files_document(files, to, paths.id))


def _name(file: RunFile) -> str:
    return f"{file.host}/{file.name}" if file.host else file.name


def _copy(file: RunFile, target: Path) -> Path:
    """Copies a file to the same name below a folder; a link is never followed, and nothing is written over."""
    import os
    import shutil

    from headrace.record_files import open_record

    copy = target / _name(file)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_record(file.path), "rb") as source, copy.open("xb") as copied:
        shutil.copyfileobj(source, copied)
        status = os.fstat(source.fileno())
    copy.chmod(status.st_mode & 0o777)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    return copy


def _files_document(files: list[RunFile], to: str | None, run_id: str) -> Document:
    from headrace.insight.render.document import Sentence, document, section, table
    from headrace.insight.render.plain_text import size_text
    from headrace.runs.event_text import counted

    if not files:
        return document(section(Sentence(f"{run_id}: no such file on this machine")))
    where = "" if to is None else f", copied to {to}"
    total = f"{counted(len(files), 'file')}, {size_text(sum(file.bytes for file in files))}{where}"
    rows = ((_name(file), size_text(file.bytes)) for file in files)
    return document(section(table(("file", "size"), rows, ("size",)), Sentence(total)))


SILENT_SECONDS = 30.0
"""Without a new part for so long, `fetch --follow` says so."""


@click.command("fetch", short_help="Copy the record of a run from where its job stores it (s3://), once or live.")
@click.argument("record", metavar="RUN|S3_URI")
@click.option(
    "--into", type=click.Path(), metavar="DIR", help="Folder of runs for the copy.  [default: that of all runs]"
)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has finished and all of it is copied.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: how often to ask for what is new.",
)
@output_option
def fetch(record: str, into: str | None, follow: bool, every: float, output: str) -> None:
    """Copy the record of a run, which its job stores with `record: {uri: s3://...}`, into the folder of runs.

    S3_URI is the job's `record.uri` and the run's id, or the name of the job (its newest run). RUN is a copy that is
    here already: only what is new is asked for. Every command reads a copy: while `fetch --follow` goes on,
    `headrace logs -f`, `status`, `report` and `ui` show the run live.

    \b
    Examples:
      headrace fetch s3://my-bucket/runs/my-job
      headrace fetch s3://my-bucket/runs/my-job-20261120-190102-1a2b --follow
      headrace fetch my-job --output json
    """
    import time
    from pathlib import Path

    from headrace.cli.options import say
    from headrace.insight.render.plain_text import size_text
    from headrace.instance.storage import Store
    from headrace.runs import Run, runs_dir
    from headrace.runs.segment_reader import RecordCopy

    with Store() as store:
        paths = _copy_of(store, record, runs_dir() if into is None else Path(into))
        copy = RecordCopy(store, paths)
        copied = copy.update()
        if follow and not copied.complete:
            click.echo(f"headrace: copying {paths.id} to {paths.root}", err=True)
            copied = _follow(copy, every)
    status = Run(paths).status
    value = {
        "run_id": paths.id,
        "run_dir": str(paths.root),
        "uri": copied.place,
        "segments": copy.segments,
        "bytes": copy.bytes,
        "complete": copied.complete,
        "stored": copied.t,
        "status": status,
    }
    ago = max(0.0, time.time() - copied.t)
    end = "complete" if copied.complete else f"the newest part was stored {ago:.0f} s ago"
    say(value, output, f"{paths.id}: {status.value}; {size_text(copy.bytes)} copied to {paths.root}; {end}")


def _copy_of(store: Store, record: str, runs: Path) -> RunPaths:
    """Returns the copy that is asked for, which is made if it is not there."""
    from headrace.errors import UsageError
    from headrace.own_runs import require_started_here
    from headrace.runs.segment_reader import open_copy, read_copied
    from headrace.runs.segments import find_record
    from headrace.runs.store import find_run

    if "://" in record:
        return open_copy(store, *find_record(store, record), runs, entered=True)
    paths = find_run(record, runs)
    if read_copied(paths) is None:
        raise UsageError(f"{paths.root} is the record itself, and no copy", "every command reads it as it is")
    require_started_here(paths.root, "nothing is added to a copy of somebody else's")
    return paths


def _follow(copy: RecordCopy, every: float) -> Copied:
    """Copies what is new until the copy is complete. A place without an answer is asked again."""
    import time

    from headrace.errors import RecordDamaged, StorageError

    told = ""
    tell_at = SILENT_SECONDS  # then after twice as long, and so on
    while True:
        time.sleep(every)
        try:
            copied = copy.update()
        except RecordDamaged:
            raise
        except StorageError as error:
            if error.message != told:
                told = error.message
                click.echo(f"headrace: {told}; trying again", err=True)
            continue
        told = ""
        if copied.complete:
            return copied
        silent = time.time() - copied.t
        if silent >= tell_at:
            tell_at *= 2
            click.echo(f"headrace: nothing new for {silent:.0f} s", err=True)
        elif silent < SILENT_SECONDS:
            tell_at = SILENT_SECONDS


def parse_since(text: str, now: float) -> float:
    """Returns a time in seconds since the epoch.

    >>> parse_since("10m", now=1000.0), parse_since("1970-01-01T00:01:00Z", now=0.0)
    (400.0, 60.0)

    Args:
        text: so long ago (``30s``, ``10m``, ``2h``, ``1d``), or a time in ISO 8601 (UTC if it names no zone).
        now: seconds since the epoch.

    Raises:
        UsageError: it is neither.
    """
    age = age_seconds(text)
    if age is not None:
        return now - age
    try:
        when = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        raise UsageError(
            f"--since {text!r} is not a time", hint="for example --since 10m, or --since 2026-11-20T19:01:02Z"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--grep {pattern!r} is not a regular expression: {error}", hint="write \\( for a parenthesis, and so on"
        ) from None

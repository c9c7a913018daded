"""Control characters of a record reach no terminal: every command shows them as escapes."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from command_line import Cli
from test_foreign_records import commands_of_runs

import headrace.cli
from headrace.cli.views.table import console
from headrace.cli.views.terminal import Terminal, VisibleStream, coloured, painted, visible
from headrace.runs import EventWriter, LogWriter, MetricWriter, RunPaths, Status, Stream, create_run
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.events import JobStarted, ProgramExited, ProgramStarted, RunFinished, SecondaryStatus, StatusChanged
from headrace.runs.log_lines import LogLine
from loader_seconds import loader_second

EVIL = "\x1b]0;TITLE\x07\x1b[2J\x9b31mC1\x9d0;TITLE\x9c\x08\r\x7f\u202e[red]rich[/red]"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def evil_run(cli: Cli) -> RunPaths:
    group = f"g{EVIL}"
    stream = Stream(group, f"algo-1{EVIL}", "0")
    paths = create_run("evil", runs=cli.runs, created=1.0)
    header = json.loads(paths.header.read_bytes())
    paths.header.write_text(json.dumps({**header, "job_name": f"evil{EVIL}", "engine": "local"}))
    hosts = [{"name": stream.host, "group": group, "address": "127.0.0.1"}]
    groups = [{"name": group, "instance_type": EVIL, "hosts": [stream.host]}]
    paths.plan.write_text(json.dumps({"groups": groups, "hosts": hosts}))
    with LogWriter(paths.log(stream)) as log:
        log.write_line("o", f"line{EVIL}".encode(), 2.0)
    with EventWriter(paths.events("engine")) as events:
        events.write(StatusChanged(t=1.5, status=SecondaryStatus.STARTING, message=f"message{EVIL}"))
        events.write(JobStarted(t=2.0))
        events.write(ProgramStarted(t=2.0, group=group, host=stream.host, stream="0", pid=1))
        events.write(ProgramExited(t=9.0, group=group, host=stream.host, stream="0", exit_code=1))
        cause = Cause(CauseKind.ENGINE_FAILED, f"cause{EVIL}")
        events.write(RunFinished(t=9.0, status=Status.FAILED, cause=cause, failure_reason=f"reason{EVIL}"))
    with MetricWriter(paths.metrics(stream)) as metrics:
        for second in range(4):
            metrics.write(loader_second(2.0 + second, loader=EVIL))
    bad = cli.runs / f"bad-{quote('x')}-20261127-143356-47db"
    bad.mkdir()
    (bad / "run.json").write_text(f'{{"run_id": "{EVIL}')
    return paths


@pytest.mark.promise("running", "control characters of a record reach no terminal: every command shows them as escapes")
def test_no_command_writes_a_control_character_of_a_record(cli: Cli) -> None:
    paths = evil_run(cli)
    seen = {}
    for line in [*commands_of_runs(), ["logs", "RUN", "--output", "json"], ["status", f"no{EVIL}".replace("\0", "")]]:
        done = cli(*[paths.id if word == "RUN" else word for word in line])
        seen[" ".join(line)] = done.stdout
        for text in (done.stdout, done.stderr):
            assert not RAW.search(text), (line, text)
            assert "Traceback" not in text, (line, text)
    for command, words in {"logs RUN": "line", "status RUN": "reason"}.items():
        assert f"{words}\\u001b]0;TITLE" in seen[command]
        assert "[red]rich[/red]" in seen[command]
    [line] = seen["logs RUN --output json"].splitlines()
    assert json.loads(line)["text"] == f"line{EVIL}"


@pytest.mark.promise("running", "control characters of a record reach no terminal: every command shows them as escapes")
def test_what_anybody_wrote_is_visible_whichever_way_it_is_written() -> None:
    out = io.StringIO()
    stream = VisibleStream(out)
    stream.write(f"{EVIL}\n")
    stream.writelines([EVIL, "\tx\n"])
    Terminal(out, interactive=False, colour=False).write(EVIL)
    console(out).print(EVIL, markup=False)
    assert not RAW.search(out.getvalue())
    assert not hasattr(stream, "buffer")
    assert painted(stream) is out
    assert out.getvalue().count("\\u009b31m") == 4
    assert json.loads(visible(json.dumps({"a": EVIL}, ensure_ascii=False))) == {"a": EVIL}


def test_colours_of_a_program_stay_and_nothing_else_does() -> None:
    assert coloured("\x1b[1;31mred\x1b[0m \x1b[2K\x9b31m") == "\x1b[1;31mred\x1b[0m \\u001b[2K\\u009b31m"
    out = io.StringIO()
    terminal = Terminal(out, interactive=True, colour=True)
    terminal.below(f"{EVIL}")
    terminal.log(LogLine(time.time(), Stream(EVIL, EVIL, EVIL), "o", EVIL))
    ours = re.sub(r"\x1b\[[0-9;]*m|\r\x1b\[2K", "", out.getvalue())
    assert not RAW.search(ours)


def test_only_what_makes_text_visible_goes_around_the_stream() -> None:
    folder = Path(headrace.cli.__file__).parent
    around = {path.name for path in folder.rglob("*.py") if re.search(r"painted\(|\.buffer\b", path.read_text())}
    assert around == {"terminal.py", "table.py"}

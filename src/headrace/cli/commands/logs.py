"""`headrace logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from headrace.runs import LogLine


@click.command("logs", short_help="Show or follow what the programs of a run wrote.")
@click.argument("selector", metavar="RUN[/GROUP[/HOST[/RANK]]]")
@click.option("-f", "--follow", is_flag=True, help="Wait for further lines until the run has finished.")
@click.option("--grep", "pattern", default="", metavar="PATTERN", help="Only lines that match this regular expression.")
@click.option("--since", metavar="TIME", help="Only lines since then: 30s, 10m, 2h, 1d (ago), or 2026-11-20T19:01:02Z.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Of the existing lines, only the last N.")
@click.option("--timestamps", is_flag=True, help="Show when each line was written (UTC).")
@output_option
def command(
    selector: str, follow: bool, pattern: str, since: str | None, tail: int | None, timestamps: bool, output: str
) -> int:
    """Show the lines of all programs of a run, or of some, by time.

    RUN is a run id or a job name (its newest run). RANK is a global rank, `feed` or `agent`; GROUP/HOST[RANK], as
    the lines show it, works too. With --output json every line is a JSON object.

    \b
    Examples:
      headrace logs my-job
      headrace logs my-job/dnn_group/algo-1/0 -f
      headrace logs my-job/data_group --timestamps --since 10m
      headrace logs my-job --grep 'loss|error' --tail 20 -f
    """
    from headrace.cli.log_filter import LogFilter
    from headrace.cli.options import open_run
    from headrace.cli.views.terminal import Terminal
    from headrace.runs import parse_selector

    name, chosen = parse_selector(selector)
    run = open_run(name)
    terminal = Terminal.standard()

    def show(line: LogLine) -> None:
        if output == "json":
            terminal.write(json_line(line))
        else:
            terminal.log(line, timestamps)

    wanted = LogFilter(show, pattern, since, tail)

    def idle() -> None:
        wanted.caught_up()
        terminal.flush()

    wanted.take(run.logs(chosen, follow=follow, on_idle=idle))
    idle()
    for damage in run.damage:
        click.echo(f"headrace: {damage}", err=True)
    if follow:
        state = run.state()
        end = f"headrace: {run.id}: {state.secondary_status.value}"
        click.echo(end + (f": {state.cause}" if state.cause else ""), err=True)
    return 0


def json_line(line: LogLine) -> str:
    """Returns a log line as one JSON object on one line."""
    import msgspec

    from headrace.runs.log_lines import KINDS

    where = line.stream
    fields = {"t": line.t, "group": where.group, "host": where.host, "stream": where.name}
    return msgspec.json.encode({**fields, "kind": KINDS[line.kind], "text": line.text}).decode()

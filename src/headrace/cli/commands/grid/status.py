"""`headrace grid status` and `headrace grid logs`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("status", short_help="How far a grid has come: lines, regions, copies, cost.")
@click.argument("grid", metavar="GRID")
@click.option("--lines", "shown", type=click.IntRange(0), default=20, show_default=True, help="Lines to show as text.")
@click.option("--notes", is_flag=True, help="Show what happened, too.")
@output_option
def status(grid: str, shown: int, notes: bool, output: str) -> int:
    """Show how far GRID has come: first lines that failed, then those that run, wait and have completed.

    \b
    Examples:
      headrace grid status campaigns
      headrace grid status campaigns --lines 1000
      headrace grid status campaigns --output json
    """
    from headrace.cli.options import answer
    from headrace.cli.views.grid_status_tables import status_document
    from headrace.grid.journal.journal_file import has_controller, journal_path
    from headrace.grid.journal.read_grid import read_grid, read_notes
    from headrace.grid.report.read_report import with_running_costs
    from headrace.own_runs import started_here

    record = with_running_costs(read_grid(grid))
    folder = journal_path(grid).parent
    foreign = not started_here(folder)
    controlled = not foreign and has_controller(folder)
    told = read_notes(grid) if notes else ()
    answer(
        {"controlled": controlled, "foreign": foreign, "grid": record, "notes": told},
        output,
        lambda: status_document(record, controlled, foreign, shown, told),
    )
    return 0


@click.command("logs", short_help="What the programs of a line have written.")
@click.argument("grid", metavar="GRID")
@click.argument("line", metavar="LINE")
@click.option("--attempt", type=click.IntRange(1), help="Of this attempt.  [default: the latest]")
@click.option("-f", "--follow", is_flag=True, help="Wait for further lines until the run has finished.")
@click.option("--agent", is_flag=True, help="Also the agents' own notes.")
@output_option
@click.pass_context
def logs(
    context: click.Context, grid: str, line: str, attempt: int | None, follow: bool, agent: bool, output: str
) -> int:
    """Show what the programs of a line of GRID have written. LINE is its place (array.txt:3) or number (3; of a query
    or matrix from 1), its key, or its job's name.

    It is what `headrace logs` shows of the run of the line's latest attempt; `headrace grid status` names it.

    \b
    Examples:
      headrace grid logs campaigns array.txt:3
      headrace grid logs campaigns 8c355a6b7188 --attempt 1
    """
    from headrace.cli.commands.logs import command as logs_of_run
    from headrace.errors import UsageError
    from headrace.grid.journal.read_grid import lines_named, read_grid

    record = read_grid(grid)
    (found,) = lines_named(record, (line,))
    number = attempt or len(found.attempts)
    mine = next((each for each in found.attempts if each.number == number), None)
    if mine is None or not mine.run_id:
        if mine is None and found.attempts:
            raise UsageError(f"{found.place} has no attempt {number}", f"it has {len(found.attempts)}")
        why = mine.cause if mine is not None and mine.cause is not None else found.reason or found.state.value
        raise UsageError(f"{found.place} has no run{f' of attempt {attempt}' if attempt else ''}: {why}")
    code = context.invoke(logs_of_run, selector=mine.run_id, follow=follow, agent=agent, output=output)
    return int(code)

"""Plans, reports and comparisons as tables, with rich. It shows values; it computes none."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.columns import columns as _table
from headrace.cli.columns import notes as _notes
from headrace.cli.columns import row as _row
from headrace.cli.planview import PlanView, cpu_set, isolated, promises, used_ports, work, worlds
from headrace.cli.progress import duration
from headrace.cli.screen import ended
from headrace.insight import Comparison, Figure, ProgramReport, Report

TITLES = {
    "time_to_train": "time to train",
    "step_time": "step time",
    "samples_per_second": "samples/s",
    "data_wait": "data wait",
    "cpu": "CPU",
    "max_rss": "max RSS",
}
_MISSING = "-"


def console() -> Console:
    """Returns a console on standard output. On a pipe nothing is wrapped or cut."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=not sys.stdout.isatty())


def number(figure: Figure) -> str:
    """Returns a value with its unit; ``-`` when it was not measured."""
    if figure.value is None:
        return _MISSING
    if figure.unit == "bytes":
        return f"{figure.value / 2**20:.0f} MiB"
    if figure.unit == "1":
        return f"{figure.value:.0f}"
    return f"{figure.value:.{_places(figure.value)}f}{'' if figure.unit == '1/s' else ' ' + figure.unit}"


def spread(figure: Figure) -> str:
    """Returns the spread of a figure, e.g. ``[9.8 .. 10.4]``; empty without one."""
    if figure.spread is None:
        return ""
    places = _places(figure.value or 0.0)
    return f"[{figure.spread.low:.{places}f} .. {figure.spread.high:.{places}f}]"


def _places(value: float) -> int:
    return 1 if abs(value) >= 10 else 2


def _cell(figure: Figure) -> str:
    return f"{number(figure)} {spread(figure)}".strip()


def show_report(report: Report) -> None:
    """Prints the report of one run."""
    out = console()
    degraded = " (degraded)" if report.degraded else ""
    out.print(Text(f"{report.run_id}  {report.status.value}{degraded}", style="bold"))
    if report.cause is not None:
        out.print(Text(f"cause: {report.cause}"))
    out.print(Text(f"time to train: {number(report.time_to_train)}"), Text(report.time_to_train.note))
    if report.loaders:
        table = _table(("loader", "rank", "steps", "samples", "step time", "samples/s", "data wait"))
        every = [*report.loaders, *([report.training] if report.training and report.training.ranks > 1 else [])]
        for one in every:
            where = f"{one.group}/{one.host}[{one.rank}]" if one.rank else f"all {one.ranks} ranks"
            rates = (one.step_time, one.samples_per_second, one.data_wait)
            _row(table, one.loader, where, number(one.steps), number(one.samples), *map(_cell, rates))
        out.print()
        out.print(table)
    table = _table(("group", "hosts", "cores", "CPU of its own cores", "max RSS"))
    for group in report.groups:
        cores = _MISSING if group.cores is None else str(group.cores)
        _row(table, group.name, " ".join(group.hosts), cores, _cell(group.cpu), number(group.max_rss))
    out.print()
    out.print(table)
    table = _table(("program", "ended", "ran for"))
    going_on = report.ended is None
    for program in report.programs:
        ran = _MISSING if program.seconds is None else duration(program.seconds)
        _row(
            table,
            f"{program.group}/{program.host}[{program.stream}]",
            _ended(program, going_on=going_on),
            ran,
        )
    out.print()
    out.print(table)
    notes = [*report.notes, *_figure_notes(report), _HOW]
    _notes(out, notes)


_HOW = (
    "rates leave out the first second of every loader; [a .. b]: 10th to 90th percentile of the seconds; "
    "formulas: --output json"
)


def _figure_notes(report: Report) -> list[str]:
    figures = [(f"{one.loader} of rank {one.rank}", one.step_time) for one in report.loaders]
    figures += [(f"CPU of {group.name}", group.cpu) for group in report.groups]
    return [f"{what}: {figure.note}" for what, figure in figures if figure.note]


def _ended(program: ProgramReport, *, going_on: bool) -> str:
    if program.exit_code is None and program.signal is None:
        return "running" if going_on else "no exit seen"
    how = ended(program.exit_code, program.signal)
    return f"{how} (stopped)" if program.stopped else how


def show_comparison(comparison: Comparison) -> None:
    """Prints runs side by side."""
    out = console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    for index, run in enumerate(comparison.runs):
        table.add_column(Text(run.run_id), justify="right", no_wrap=True)
        table.add_column("spread", justify="left", no_wrap=True)
        if index:
            table.add_column("ratio", justify="right", no_wrap=True)
    for row in comparison.rows:
        cells = [TITLES.get(row.name, row.name) + (f" of {row.group}" if row.group else "")]
        for index, cell in enumerate(row.cells):
            cells += [number(cell.figure), spread(cell.figure)]
            if index:
                cells.append(_MISSING if cell.ratio is None else f"{cell.ratio:.2f}")
        _row(table, *cells)
    out.print(table)
    _notes(out, [*comparison.notes, "ratio: to the first run. " + _HOW])


def show_plan(plan: PlanView) -> None:
    """Prints a plan."""
    out = console()
    out.print(Text(f"{plan.job_name}  ({promises(plan)})", style="bold"))
    table = _table(("group", "type", "hosts", "a host runs"))
    for group in plan.groups:
        _row(table, group.name, group.instance_type, " ".join(group.hosts), work(group))
    out.print()
    out.print(table)
    for host in plan.hosts:
        leader = ", leads the job" if host.name == plan.leader else ""
        out.print()
        owns = f"CPUs {cpu_set(host.cpus)}" + (f", {host.limits}" if host.limits else "")
        out.print(Text(f"{host.group}/{host.name}  {host.address}  {owns}{leader}", style="bold"))
        for program in host.programs:
            out.print(Text(f"  [{program.stream}] {shlex.join(program.argv)}"))
        if host.launched:
            out.print(Text(f"  [{' '.join(host.launched)}] ranks that mpirun starts"))
        for name, folder in host.channels.items():
            out.print(Text(f"  channel {name}: {folder}"))
    out.print()
    for line in (*worlds(plan), *_stored(plan), *plan.limits, used_ports(plan)):
        out.print(Text(line))
    out.print(Text(isolated(plan.isolation)))
    if plan.without_effect:
        table = _table(("without effect here", "why"))
        for unused in plan.without_effect:
            _row(table, unused.field, unused.why)
        out.print()
        out.print(table)


def _stored(plan: PlanView) -> Iterable[str]:
    """What the job brings along and keeps, in words."""
    for group, file in plan.requirements.items():
        yield f"requirements of {group}: {file}, installed before the start, once for all jobs with the same"
    storage = plan.storage
    yield f"model and output: {storage.output or 'output, in the folder of the run'}"
    if storage.checkpoints:
        yield f"checkpoints: {storage.checkpoint_path} of every host, kept in {storage.checkpoints}"

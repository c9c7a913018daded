"""The report of a trial on the screen. It shows values; it computes none."""

from __future__ import annotations

from rich.text import Text

from headrace.cli.views.table import Columns, console
from headrace.insight.doctor.doctor_report import RankReport, TrialReport, advice_lines
from headrace.insight.doctor.offload_decision import Advice
from headrace.insight.figures.figure import Figure
from headrace.insight.render.plain_text import number, spread
from headrace.measuring.watch import STOPPED

TITLES = {
    "steps": "measured steps",
    "batch_size": "samples a batch",
    "step_time": "step time",
    "data_wait": "stall (data wait)",
    "step_floor": "step floor",
    "best_gain": "best gain possible",
    "sample_cpu": "CPU a sample",
    "sample_wall": "worker time a sample",
    "trainer_cores": "training's own CPU",
    "local_capacity": "local capacity",
    "batch": "batch",
}


def show_trial(report: TrialReport) -> None:
    """Prints the report of one trial."""
    out = console()
    out.print()
    if report.crowded:
        out.print(Text(f"NOT SURE: {report.crowded}. Run it again when the machine is quiet", style="bold"))
    out.print(Text(f"{report.verdict.advice.value.upper()}: {report.verdict.reason}", style="bold"))
    worst = next(one for one in report.ranks if one.pid == report.worst_pid)
    for line in advice_lines(report.verdict, worst.chosen):
        out.print(Text(f"  use {line}"))
    if report.verdict.step is not None and report.verdict.advice is not Advice.DO_NOT_OFFLOAD:
        step = worst.figures["step_time"].value or 0.0
        predicted = 1000 * report.verdict.step
        out.print(Text(f"  predicted: {predicted:.1f} ms a step instead of {step:.1f}, {step / predicted:.2f}x"))
    for rank in report.ranks:
        out.print()
        _rank(rank, many=len(report.ranks) > 1, crowded=bool(report.crowded))
    out.print()
    _transfer(report)
    notes = [*report.notes, *report.verdict.notes, *worst.notes]
    if report.stopped:
        notes.append("the script was stopped after the trial; --full lets it go on")
    if report.exit_code not in (0, *((STOPPED,) if report.stopped else ())):
        notes.append(f"the command ended with exit code {report.exit_code} after the trial")
    out.print()
    for note in [*notes, "[a .. b]: 10th to 90th percentile of the steps; windows and formulas: --output json"]:
        out.print(Text(f"note: {note}"))


def _rank(rank: RankReport, *, many: bool, crowded: bool) -> None:
    out = console()
    which = f"rank {rank.rank}: " if many else ""
    verdict = f"  ({rank.verdict.advice.value})" if many else ""
    out.print(Text(f"{which}{rank.loader}{verdict}", style="bold"))
    table = Columns((), right=frozenset({1}))
    for name, title in TITLES.items():
        figure = rank.figures[name]
        if crowded and name == "best_gain":  # steps had other cores than their replay
            table.add(title, "-", "not known: other programs had the cores")
            continue
        table.add(title, _value(figure), spread(figure) or figure.note)
    out.print(table)
    for other in rank.others:
        out.print(Text(f"also seen, not judged: {other}"))


def _value(figure: Figure) -> str:
    if figure.unit == "x" and figure.value is not None:
        return f"{figure.value:.2f}x"
    if figure.unit == "bytes" and figure.value is not None:
        return f"{figure.value / 1e6:.2f} MB" if figure.value >= 1e5 else f"{figure.value:.0f} bytes"
    if figure.unit == "1/s" and figure.value is not None:
        return f"{figure.value:.0f} samples/s"
    return number(figure)


def _least(milliseconds: float) -> str:
    return f"{milliseconds:.2f}" if milliseconds >= 0.01 else "<0.01"


def _transfer(report: TrialReport) -> None:
    out = console()
    transfer = report.transfer
    if transfer is None:
        out.print(Text(f"a batch over TCP: not measured: {report.no_transfer}"))
    else:
        out.print(Text("a batch over TCP (headrace's feed on loopback, both ends on this machine)", style="bold"))
        table = Columns((), right=frozenset({1}))
        table.add("time", f"{1000 * transfer.seconds:.2f} ms", "")
        table.add("CPU of the trainer", f"{1000 * transfer.trainer_cpu:.2f} ms", "")
        table.add("CPU of the feed server", f"{1000 * transfer.worker_cpu:.2f} ms", "")
        out.print(table)
    if report.wires:
        limits = ", ".join(f"{_least(wire.milliseconds)} ms at {wire.gigabits} Gbit/s" for wire in report.wires)
        out.print(Text(f"limit of the wire: {limits}"))

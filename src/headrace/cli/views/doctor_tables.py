"""What `headrace doctor` tells, as documents: a trial, how this machine isolates the hosts of a job, what works in an
engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.engines.documents import Capability
from headrace.insight.doctor_report import TRIAL_FIGURES, RankReport, TrialReport, advice_lines
from headrace.insight.figures.figure import Figure
from headrace.insight.offload_decision import Advice
from headrace.insight.render.document import (
    Document,
    Heading,
    Section,
    Sentence,
    Table,
    document,
    notes,
    section,
    sentences,
    table,
)
from headrace.insight.render.plain_text import MISSING, number, spread
from headrace.measuring.watch import STOPPED

if TYPE_CHECKING:
    from headrace.instance.launch_plan import Isolation


def trial_document(report: TrialReport) -> Document:
    """Returns the report of one trial."""
    verdict = report.verdict
    worst = next(one for one in report.ranks if one.pid == report.worst_pid)
    sure = f"NOT SURE: {report.crowded}. Run it again when the machine is quiet" if report.crowded else ""
    hints = [f"use {line}" for line in advice_lines(verdict, worst.chosen)]
    if verdict.step is not None and verdict.advice is not Advice.DO_NOT_OFFLOAD:
        step = worst.figures["step_time"].value or 0.0
        predicted = 1000 * verdict.step
        hints.append(f"predicted: {predicted:.1f} ms a step instead of {step:.1f}, {step / predicted:.2f}x")
    more = [*report.notes, *verdict.notes, *worst.notes]
    if report.stopped:
        more.append("the script was stopped after the trial; --full lets it go on")
    if report.exit_code not in (0, *((STOPPED,) if report.stopped else ())):
        more.append(f"the command ended with exit code {report.exit_code} after the trial")
    return document(
        section(
            Sentence(sure, strong=True) if sure else None,
            Sentence(f"{verdict.advice.value.upper()}: {verdict.reason}", strong=True),
            *(Sentence(line, detail=True) for line in hints),
        ),
        *(_rank(rank, many=len(report.ranks) > 1, crowded=bool(report.crowded)) for rank in report.ranks),
        _transfer(report),
        notes([*more, "[a .. b]: 10th to 90th percentile of the steps; windows and formulas: --output json"]),
    )


def _rank(rank: RankReport, *, many: bool, crowded: bool) -> Section:
    which = f"rank {rank.rank}: " if many else ""
    verdict = f"  ({rank.verdict.advice.value})" if many else ""
    rows = []
    for name, figure in rank.figures.items():
        title = TRIAL_FIGURES[name].title
        if crowded and name == "best_gain":  # steps had other cores than their replay
            rows.append((title, MISSING, "not known: other programs had the cores"))
        else:
            rows.append((title, _value(figure), spread(figure) or figure.note))
    return section(
        Sentence(f"{which}{rank.loader}{verdict}", strong=True),
        Table("", (), tuple(rows), right=frozenset({1})),
        *sentences(f"also seen, not judged: {other}" for other in rank.others),
    )


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


def _transfer(report: TrialReport) -> Section:
    transfer = report.transfer
    limits = ", ".join(f"{_least(wire.milliseconds)} ms at {wire.gigabits} Gbit/s" for wire in report.wires)
    wire = Sentence(f"limit of the wire: {limits}") if limits else None
    if transfer is None:
        return section(Sentence(f"a batch over TCP: not measured: {report.no_transfer}"), wire)
    rows = (
        ("time", f"{1000 * transfer.seconds:.2f} ms"),
        ("CPU of the trainer", f"{1000 * transfer.trainer_cpu:.2f} ms"),
        ("CPU of the feed server", f"{1000 * transfer.worker_cpu:.2f} ms"),
    )
    title = "a batch over TCP (headrace's feed on loopback, both ends on this machine)"
    return section(Sentence(title, strong=True), Table("", (), rows, right=frozenset({1})), wire)


class MachineReport(msgspec.Struct, frozen=True):
    """What this machine offers to hosts.

    Attributes:
        isolation: what ``engines.local.isolation: auto`` gets here, or that of a job.
        as_root: whether namespaces are made as root, without a user namespace.
        channels_read_only: why hosts in namespaces can only read their channels; empty where each can write to a view
            of its own.
    """

    isolation: Isolation
    as_root: bool
    channels_read_only: str = ""


def machine_report(path: str, overrides: tuple[str, ...]) -> MachineReport:
    """Looks at this machine, and at a job file when there is one. Raises what `load_job` and `choose` raise."""
    from headrace.engines.local.isolation_plan import choose, found_here
    from headrace.job import load_job

    found = found_here()
    wanted = "auto"
    if path:
        job = load_job(path, list(overrides))
        job.check_files()
        wanted = job.local.isolation
    return MachineReport(choose(wanted), not found.user_namespace, found.overlay)


def isolation_document(found: MachineReport) -> Document:
    """Returns the report."""
    isolation = found.isolation
    if isolation.own_files:
        own = "name, address, ports and processes" if isolation.own_network else "name and processes"
        writes = "what a host writes to its input channels stays with it, and goes with the run"
        if found.channels_read_only:
            writes = f"hosts can only read their input channels: {found.channels_read_only}"
        way = "hosts reach other machines" if isolation.outward else "hosts reach only each other"
        lines = [
            f"every host has its own /opt/ml, /tmp, {own}",
            f"made {'as root' if found.as_root else 'without root, in a user namespace'}",
            writes,
            f"{way}{f': {isolation.why_not_outward}' if isolation.why_not_outward else ''}",
        ]
        if not isolation.own_network:
            lines.append("they are addresses of this machine: a port on 0.0.0.0 can be had by one host")
    else:
        lines = [
            "hosts are addresses of this machine: they share its name, files, processes and ports",
            "what a host writes to an input channel changes your own folder, and what other hosts see",
            "a port on 0.0.0.0 can be had by one host; names algo-N do not resolve; there is no /opt/ml",
        ]
    heading = Heading(f"isolation: {isolation.level} ({isolation.why})")
    return document(section(heading, *(Sentence(line, detail=True) for line in lines)))


def capability_values(engine: str, found: Sequence[Capability]) -> dict[str, object]:
    """Returns what output as JSON holds."""
    return {"engine": engine, "capabilities": [one._asdict() for one in found]}


def capability_document(engine: str, found: Sequence[Capability]) -> Document:
    """Returns what works, and what to do where something does not."""
    rows = ((one.name, "yes" if one.works else "no", one.detail) for one in found)
    missing = (f"for {one.name}: {one.hint}" for one in found if not one.works and one.hint)
    return document(section(Heading(f"engine {engine}"), table(("", "works", ""), rows)), section(*sentences(missing)))

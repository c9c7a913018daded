"""Runs and their lives as tables, with rich: for `headrace ps` and `headrace status`. It computes nothing."""

from __future__ import annotations

import time

import msgspec
from rich.text import Text

from headrace.cli.views.table import columns as _table
from headrace.cli.views.table import console
from headrace.insight.render.plain_text import duration, size_text
from headrace.own_runs import started_here
from headrace.runs import Run, RunState, read_plan
from headrace.runs.event_text import counted, files_left, losses, record_text, silence_text, worlds_text
from headrace.runs.events import SecondaryStatus
from headrace.runs.lifecycle import billable_seconds, billed_seconds
from headrace.runs.run_listing import RunLine


def show_runs(lines: list[RunLine], every: bool) -> None:
    """Prints a list of runs."""
    out = console()
    if not lines:
        out.print("no run yet" if every else "no run is going on (headrace ps --all lists those that have ended)")
        return
    size = ("size",) if every else ()
    shown = _table(("run", "status", "", "hosts", "started", "ran for", *size), right=("hosts", "ran for", *size))
    for line in lines:
        attempt = f"attempt {line.attempt}" if line.attempt > 1 else ""
        going = line.silent_seconds is not None and line.exit_code is None
        silent = f"nothing new for {duration(line.silent_seconds or 0.0)}" if going else ""
        status = line.secondary_status if line.secondary_status != line.status else ""
        foreign = "not started here" if line.foreign else ""
        serves = f"plays the service for {line.serves}" if line.serves else ""
        second = ", ".join(word for word in (status, attempt, silent, serves, foreign) if word)
        hosts, took = str(line.hosts or "-"), duration(line.seconds)
        takes = [size_text(line.bytes)] if line.bytes is not None else size and ["-"]
        shown.add(line.run_id, line.status, second, hosts, moment(line.created), took, *takes)
    out.print(shown)


def show_status(run: Run, now: float) -> None:
    """Prints the life of a run."""
    out = console()
    state = run.state()
    silent = None if state.finished else run.silent_seconds(now)
    now = run.present(now)
    second = "" if state.secondary_status.value == state.status.value else f" ({state.secondary_status.value})"
    plan = _plan_of(run)
    degraded = f", degraded: {losses(state.lost)}" if state.degraded else ""
    attempt = f", attempt {state.attempt}{_of_attempts(plan, state.attempt)}" if state.attempt > 1 else ""
    out.print(Text(f"{run.id}  {state.status.value}{second}{attempt}{degraded}", style="bold"))
    if worlds := worlds_text((world.kind, world.groups) for world in plan.distributions):
        out.print(Text(worlds))
    if waits := _waits(state, now):
        out.print(Text(waits))
    if silent is not None:
        out.print(Text(silence_text(silent)))
    if not started_here(run.paths.root):
        out.print(Text("not started here by this user: its record is only read, and nobody is asked about it"))
    if state.failure_reason:
        out.print(Text(f"failure reason: {state.failure_reason}"))
    if state.cause is not None and str(state.cause) != state.failure_reason:
        out.print(Text(f"cause: {state.cause}"))
    parts = _table(("status", "since (UTC)", "for", ""), right=("for",))
    for each in state.transitions:
        took = duration(max(0.0, (now if each.end is None else each.end) - each.start))
        final = each.end == each.start
        parts.add(each.status.value, moment(each.start), "" if final else took, _brief(each.message))
    out.print()
    out.print(parts)
    if state.hosts:
        clock = "by its clock" if state.billed else "billable"
        times = _table(("group", "host", clock, ""), right=(clock,))
        for host in state.hosts:
            note = "released early" if host.released else ("runs" if host.ended is None else "")
            times.add(host.group, host.host, f"{host.seconds(now):.1f} s", note)
        out.print()
        out.print(times)
        sums = ", ".join(f"{name} {value:.1f} s" for name, value in billable_seconds(state.hosts, now).items())
        own = "seconds of all hosts by headrace's clocks" if state.billed else "billable seconds of all hosts"
        out.print(Text(f"{own}: {sums}"))
    if state.billed:
        sums = ", ".join(f"{name} {seconds} s" for name, seconds in billed_seconds(state.billed).items())
        out.print(Text(f"billable seconds of all hosts as the service has told them: {sums}"))
    for stored in state.artefacts:
        many = "file differs" if stored.clash_count == 1 else "files differ"
        clashes = f", {stored.clash_count} {many} between hosts" if stored.clash_count else ""
        out.print(Text(f"{stored.name}: {stored.uri} ({counted(stored.files, 'file')}{clashes})"))
    for left in state.files_left:
        out.print(Text(files_left(left, run.paths)))
    if state.record_not_stored is not None:
        out.print(Text(f"warning: {record_text(state.record_not_stored)}"))


class _Retry(msgspec.Struct, frozen=True):
    attempts: int = 0


class _World(msgspec.Struct, frozen=True):
    kind: str
    groups: tuple[str, ...]


class _Plan(msgspec.Struct, frozen=True):
    retry: _Retry = _Retry()
    distributions: tuple[_World, ...] = ()


def _plan_of(run: Run) -> _Plan:
    """Returns what the plan of a run says; nothing when it cannot be read."""
    try:
        return read_plan(run.paths, _Plan)
    except (OSError, msgspec.DecodeError):
        return _Plan()


def _of_attempts(plan: _Plan, attempt: int) -> str:
    """Returns ``of 3``, how many attempts the job may have; nothing when its plan does not tell, or its platform gives
    it more: after an interruption of spot instances, for example."""
    most = plan.retry.attempts + 1
    return f" of {most}" if attempt <= most else ""


def _waits(state: RunState, now: float) -> str:
    """Returns since when a run waits for its platform, and why; empty when it does not."""
    if state.finished or state.secondary_status not in (SecondaryStatus.PENDING, SecondaryStatus.INTERRUPTED):
        return ""
    last = state.transitions[-1]
    why = f": {_brief(last.message)}" if last.message else ""
    return f"waits for its instances since {moment(last.start)} UTC ({duration(now - last.start)}){why}"


def _brief(message: str) -> str:
    """The first line of a message; the whole of a cause stands above the table."""
    return message.partition("\n")[0]


def moment(seconds: float) -> str:
    """Formats a time in UTC.

    >>> moment(0)
    '1970-01-01 00:00:00'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))

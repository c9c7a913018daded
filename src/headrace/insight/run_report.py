"""The report of one run: what it was, how it ended, and its figures."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

import msgspec

from headrace.insight.evidence import (
    Usage,
    VerdictInputs,
    beside_of,
    crowded,
    made_beside,
    silence_of,
    supply_of,
)
from headrace.insight.figures.columns import VALUE_MEAN, Columns, Table, joined, read_columns, span
from headrace.insight.figures.figure import FORMULAS, Figure, Window, figure_of, missing
from headrace.insight.figures.host_usage import GroupReport, PlatformUse, cpu_rate, group_report, platform_uses
from headrace.insight.figures.loaders import (
    LoaderReport,
    Ranks,
    ServerReport,
    Training,
    WorkersReport,
    loader_report,
    server_reports,
    training_of,
    without_warm_up,
    workers_reports,
)
from headrace.insight.figures.run_files import PlannedJob, absent, planned_job
from headrace.insight.run_cost import CostReport, cost_of
from headrace.insight.verdict import Verdict, long_warm_up, verdict, with_others, with_warm_up
from headrace.runs import (
    Damage,
    Program,
    Run,
    RunHeader,
    RunState,
    Status,
    Stream,
)
from headrace.runs.cause import CauseInWords, in_words
from headrace.runs.event_text import lines_text, losses, not_started, sentence, silence_text
from headrace.runs.run_paths import AGENT


class ProgramReport(msgspec.Struct, frozen=True):
    """How one program ended.

    Attributes:
        group, host, stream: where; stream is a rank, ``feed`` or ``agent``.
        exit_code, signal: how it ended; both None while it runs.
        stopped: it was told to end.
        seconds: how long it ran, None if unknown.
    """

    group: str
    host: str
    stream: str
    exit_code: int | None
    signal: int | None
    stopped: bool
    seconds: float | None


class Report(msgspec.Struct, frozen=True):
    """One run, judged.

    Attributes:
        job_name, run_id, engine, headrace_version: which run.
        created, started, ended: seconds since the epoch, UTC; `started` is when the programs were told to start.
        status, cause, degraded: how it ended; `cause` is the first thing that went wrong.
        verdict: what limits the job.
        time_to_train: see `formulas`.
        training: the main loader (``train``, else the one with the most samples), all ranks together; None without
            loader metrics.
        loaders: every loader of every rank.
        workers: the data workers of every group: feed servers, and those that ranks have of their own.
        servers: the servers of tf.data.service.
        groups, programs: every instance group and every program.
        values: every metric that the job defines by a regex.
        platform: what its platform measured of hosts whose own record does not tell it; empty for most runs.
        cost: what it costs; None when plan.json, which names the instance types, cannot be read.
        notes: what a reader must know about these figures.
        formulas: how every figure is computed, by its name.
        unread: why plan.json cannot be read, so that there is no cost; empty when it was read. It is among the notes.
    """

    job_name: str
    run_id: str
    engine: str
    headrace_version: str
    created: float
    started: float | None
    ended: float | None
    status: Status
    cause: CauseInWords | None
    degraded: bool
    verdict: Verdict
    time_to_train: Figure
    training: LoaderReport | None
    loaders: tuple[LoaderReport, ...]
    workers: tuple[WorkersReport, ...]
    servers: tuple[ServerReport, ...]
    groups: tuple[GroupReport, ...]
    programs: tuple[ProgramReport, ...]
    values: tuple[ValueReport, ...]
    cost: CostReport | None
    notes: tuple[str, ...]
    formulas: dict[str, str]
    unread: str = ""
    platform: tuple[PlatformUse, ...] = ()

    def figures(self) -> dict[tuple[str, str], Figure]:
        """Returns its figures by name and group, which is empty for those of the training, the run and its cost."""
        parts: list[tuple[str, msgspec.Struct | None]] = [("", self), ("", self.training), ("", self.cost)]
        parts += [(group.name, group) for group in self.groups]
        return {
            (value.name, group): value
            for group, part in parts
            for value in (msgspec.structs.asdict(part).values() if part is not None else ())
            if isinstance(value, Figure)
        }


def report(run: Run, columns: Columns | None = None) -> Report:
    """Reads a run and judges it.

    Args:
        run: the run; it may still be going on.
        columns: its metrics, if they were read before.

    Raises:
        OSError, msgspec.DecodeError: if its header cannot be read.
    """
    state = run.state()
    columns = read_columns(run) if columns is None else columns
    training = training_of(columns.loaders())
    clock = time.time()
    now = run.present(clock) if state.ended is None else state.ended
    silent = None if state.finished else run.silent_seconds(clock)
    header = run.header
    plan, unread = planned_job(run)
    on = datetime.fromtimestamp(header.created, timezone.utc).date()
    cost = None if unread else cost_of(state, plan, training, now=now, on=on, engine=header.engine)
    damage = (*run.damage, *absent(run.paths, state))
    found = judge(header, state, plan, training, columns, cost=cost, damage=damage, now=now)
    first = (*((unread,) if unread else ()), *(() if silent is None else (silence_text(silent),)))
    types = {group.name: group.instance_type for group in plan.groups}
    left_out = (f"{Stream(each.group, each.host, AGENT)}: {sentence(each)}" for each in state.left_out)
    notes = (*first, *found.notes, *left_out)
    return msgspec.structs.replace(found, notes=notes, unread=unread, platform=platform_uses(columns, types))


def judge(
    header: RunHeader,
    state: RunState,
    plan: PlannedJob,
    training: Training | None,
    columns: Columns,
    *,
    cost: CostReport | None,
    damage: Sequence[Damage],
    now: float,
) -> Report:
    """Returns the report of a run, from values alone.

    Args:
        header: the run's header.
        state: what its events say.
        plan: its groups; may be empty.
        training: the main loader; None without loader metrics.
        columns: its metrics.
        cost: what it costs.
        damage: lines that could not be read.
        now: seconds since the epoch; the end of a run that has ended.
    """
    window = None if training is None else training.window
    notes = [str(one) for one in damage]
    waits = not_started(state)
    if window is None and not waits:
        window = _run_window(state, plan)
        notes.append(
            "the main loader has no record after its warm-up: CPU % covers the programs' whole time"
            if training is not None
            else "no loader metrics: wrap the training loader with headrace.track, or use headrace.feed.DataLoader"
        )
    if state.degraded:
        notes.append(f"degraded: {losses(state.lost)} while the job went on")
    notes += [f"{one.stream}: {lines_text(one)}" for one in state.programs if one.lost_lines]
    if not (state.finished or waits):
        notes.append("the run is still going on: the figures are of now")
    groups = _groups(plan, state, columns, window, one_machine=header.engine == "local")
    found_workers = workers_reports(columns, window)
    notes += [
        f'{one.loader}: num_workers="auto" has {one.executors} at last: {one.because_text}'
        for one in found_workers if one.because
    ]  # fmt: skip
    ranks: Ranks = {} if training is None else training.ranks
    beside = training is not None and made_beside(training.name, ranks, columns, window)
    return Report(
        job_name=header.job_name,
        run_id=header.run_id,
        engine=header.engine,
        headrace_version=header.headrace_version,
        created=header.created,
        started=state.started,
        ended=state.ended,
        status=state.status,
        cause=in_words(state.cause),
        degraded=state.degraded,
        verdict=with_others(
            with_warm_up(
                verdict(
                    VerdictInputs(
                        ranks=without_warm_up(ranks),
                        supply=supply_of(found_workers, "" if training is None else training.name),
                        beside=beside_of(ranks, groups) if beside else None,
                        usage=_usage(groups),
                        silence=silence_of(state.status, state.cause, completion_programs(state, plan), columns, now),
                        window=window,
                        servers=bool(columns.keys("service")),
                        not_started=waits,
                    )
                ),
                long_warm_up(ranks),
            ),
            crowded(groups),
        ),
        time_to_train=time_to_train(state, plan),
        training=None if training is None else training.report,
        loaders=tuple(
            loader_report(name, {stream: rank})
            for name, ranks in columns.loaders().items()
            for stream, rank in ranks.items()
        ),
        workers=found_workers,
        servers=server_reports(columns),
        groups=groups,
        programs=tuple(_program(program) for program in state.programs),
        values=value_reports((each.name for each in plan.metric_definitions), columns),
        cost=cost,
        notes=tuple(notes),
        formulas=FORMULAS,
    )


def completion_programs(state: RunState, plan: PlannedJob) -> list[Program]:
    """Returns the programs whose success is the job's: the ranks of the completion groups."""
    ranks = [program for program in state.programs if program.stream.name.isdecimal()]
    wanted = set(plan.completion_groups)
    return [program for program in ranks if not wanted or program.stream.group in wanted]


def time_to_train(state: RunState, plan: PlannedJob) -> Figure:
    """Returns the seconds from job_started to the exit of the last completion program."""
    if not state.finished:
        return missing(
            "time_to_train", "the run has not started" if not_started(state) else "the run is still going on"
        )
    if state.status is not Status.COMPLETED:
        return missing("time_to_train", f"the run did not complete: {state.status.value}")
    window = _run_window(state, plan)
    if window is None:
        return missing("time_to_train", "the events of the start or of the exits are missing")
    return figure_of("time_to_train", window.seconds, window)


def _run_window(state: RunState, plan: PlannedJob) -> Window | None:
    exits = [program.ended for program in completion_programs(state, plan)]
    ended = [t for t in exits if t is not None]
    if state.started is None or not ended or len(ended) < len(exits):
        return None
    return Window(state.started, max(ended))


def _groups(
    plan: PlannedJob,
    state: RunState,
    columns: Columns,
    window: Window | None,
    *,
    one_machine: bool,
) -> tuple[GroupReport, ...]:
    hosts = columns.streams("host")
    members: dict[str, list[str]] = {group.name: list(group.hosts) for group in plan.groups}
    if not members:
        for stream in sorted({*hosts, *(program.stream for program in state.programs)}):
            known = members.setdefault(stream.group, [])
            if stream.host not in known:
                known.append(stream.host)
    rates = {stream.host: cpu_rate(found, window) for stream, found in hosts.items()} if one_machine else {}
    beside = {
        host.name: sum(
            rates.get(other.name, 0.0) for other in plan.hosts if other is not host and host.shares_with(other)
        )
        for host in plan.hosts
    }
    return tuple(group_report(name, names, columns, window, beside) for name, names in members.items())


def _usage(groups: Sequence[GroupReport]) -> Usage:
    """Returns how busy all GPUs, and the CPUs of the busiest group, looked."""
    gpus = [
        (len(host.gpus), host.gpu_use.value)
        for group in groups
        for host in group.by_host
        if host.gpu_use.value is not None
    ]
    known = {group.name: group.cpu.value for group in groups if group.cpu.value is not None}
    busiest = max(known, key=lambda name: known[name], default="")
    use = sum(count * value for count, value in gpus) / sum(count for count, _ in gpus) if gpus else None
    return Usage(use, known.get(busiest), busiest)


def _program(program: Program) -> ProgramReport:
    known = program.started is not None and program.ended is not None
    return ProgramReport(
        group=program.stream.group,
        host=program.stream.host,
        stream=program.stream.name,
        exit_code=program.exit_code,
        signal=program.signal,
        stopped=program.stopped,
        seconds=(program.ended or 0.0) - (program.started or 0.0) if known else None,
    )


class ValueReport(msgspec.Struct, frozen=True):
    """One metric, of all programs together, whole run.

    Attributes:
        name: of the metric definition.
        programs: those that printed it, ``group/host[rank]``.
        count: how many values were found.
        last: the last one.
        min, max, mean: of all values.
    """

    name: str
    programs: tuple[str, ...]
    count: Figure
    last: Figure
    min: Figure
    max: Figure
    mean: Figure


def value_reports(names: Iterable[str], columns: Columns) -> tuple[ValueReport, ...]:
    """Returns the figures of every metric. Pure.

    Args:
        names: of the job's metric definitions; one that no program printed has figures without a value.
        columns: the metrics of the run.
    """
    found: dict[str, list[tuple[Stream, Table]]] = {name: [] for name in names}
    for key in sorted(columns.keys("value"), key=lambda key: key.stream):
        program = Stream(key.stream.group, key.stream.host, key.source)
        found.setdefault(key.name, []).append((program, columns.table(key)))
    return tuple(_report(name, tables) for name, tables in found.items())


def _report(name: str, told: Sequence[tuple[Stream, Table]]) -> ValueReport:
    programs, tables = sorted({program for program, _ in told}), [table for _, table in told]
    if not tables:
        note = "no line of a program matched its regex"
        figures = {what: missing(f"value_{what}", note) for what in ("last", "min", "max", "mean")}
        return ValueReport(name=name, programs=(), count=figure_of("value_count", 0, note=note), **figures)
    count, low, high = (joined(table[field] for table in tables) for field in ("count", "low", "high"))
    window = span(tables)
    latest, newest = max(told, key=lambda one: one[1]["t"].max())
    last = newest["last"][newest["t"].argmax()].item()
    from_whom = f"of {latest}, the newest of {len(programs)} programs" if len(programs) > 1 else ""
    return ValueReport(
        name=name,
        programs=tuple(map(str, programs)),
        count=figure_of("value_count", int(sum(count)), window),
        last=figure_of("value_last", last, window, note=from_whom),
        min=figure_of("value_min", min(low), window),
        max=figure_of("value_max", max(high), window),
        mean=VALUE_MEAN.figure(tables, window, ""),
    )

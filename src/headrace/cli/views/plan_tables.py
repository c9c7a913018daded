"""Plans as tables, with rich. It shows values; it computes none."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.text import Text

from headrace.cli.views.plan_document import PlanView, cpu_set, promises, used_ports, work, worlds
from headrace.cli.views.table import columns as _table
from headrace.cli.views.table import console
from headrace.engines.submission import Submission


def show_plan(plan: PlanView) -> None:
    """Prints a plan."""
    out = console()
    out.print(Text(f"{plan.job_name}  ({promises(plan)})", style="bold"))
    table = _table(("group", "type", "hosts", "a host runs"))
    for group in plan.groups:
        table.add(group.name, group.instance_type, " ".join(group.hosts), work(group, plan.tf_data))
    out.print()
    out.print(table)
    for host in plan.hosts:
        leader = ", leads the job" if host.name == plan.leader else ""
        out.print()
        owns = host.pod or f"CPUs {cpu_set(host.cpus)}" + (f", {host.limits}" if host.limits else "")
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
    out.print(Text(plan.isolation.words()))
    if plan.submission is not msgspec.UNSET:
        _show_submission(out, plan.submission)
    if plan.without_effect:
        table = _table(("without effect here", "why"))
        for unused in plan.without_effect:
            table.add(unused.field, unused.why)
        out.print()
        out.print(table)


def _show_submission(out: Console, submission: Submission) -> None:
    """What is sent to a platform, what is stored before, and what must be allowed."""
    for upload in submission.uploads:
        out.print(Text(f"upload: {upload.what}: {upload.to}"))
    for party, permissions in submission.permissions.items():
        table = _table((f"actions that the {party} needs", "", "on", "for"))
        for each in permissions:
            table.add(" ".join(each.actions), "optional" if each.optional else "", " ".join(each.resources), each.why)
        out.print()
        out.print(table)
    out.print()
    out.print(Text(f"{submission.operation} in {submission.region}:", style="bold"))
    out.print(Text(json.dumps(submission.request, indent=2)))


def _stored(plan: PlanView) -> Iterable[str]:
    """What the job brings along and keeps, in words."""
    for group, file in plan.requirements.items():
        yield f"requirements of {group}: {file}, installed before the start, once for all jobs with the same"
    storage = plan.storage
    yield f"model and output: {storage.output or 'output, in the folder of the run'}"
    if storage.keep:
        yield f"with the output: {', '.join(storage.keep)} of every host"
    yield (
        "other files: a host's own /tmp goes with it; what it writes below its working directory stays in the run's "
        "folder (headrace files)"
    )
    if storage.checkpoints:
        yield f"checkpoints: {storage.checkpoint_path} of every host, kept in {storage.checkpoints}"
    if plan.record is not None:
        yield f"record: {plan.record.uri}, every {plan.record.interval:g} s"

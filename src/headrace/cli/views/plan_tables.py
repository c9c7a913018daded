"""Plans as documents. It shows values; it computes none."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator

import msgspec

from headrace.cli.views.plan_document import HostView, PlanView, cpu_set, promises, used_ports, work, worlds
from headrace.engines.submission import Submission
from headrace.insight.render.document import Document, Heading, Section, Sentence, document, section, sentences, table


def plan_document(plan: PlanView) -> Document:
    """Returns a plan."""
    groups = (
        (group.name, group.instance_type, " ".join(group.hosts), work(group, plan.tf_data)) for group in plan.groups
    )
    unused = [(each.field, each.why) for each in plan.without_effect]
    return document(
        section(Heading(f"{plan.job_name}  ({promises(plan)})")),
        section(table(("group", "type", "hosts", "a host runs"), groups)),
        *(_host(plan, host) for host in plan.hosts),
        section(*sentences((*worlds(plan), *_stored(plan), *plan.limits, used_ports(plan), plan.isolation.words()))),
        *(() if plan.submission is msgspec.UNSET else _submission(plan.submission)),
        section(table(("without effect here", "why"), unused)) if unused else None,
    )


def _host(plan: PlanView, host: HostView) -> Section:
    leader = ", leads the job" if host.name == plan.leader else ""
    owns = host.pod or f"CPUs {cpu_set(host.cpus)}" + (f", {host.limits}" if host.limits else "")
    lines = [f"[{program.stream}] {shlex.join(program.argv)}" for program in host.programs]
    if host.launched:
        lines.append(f"[{' '.join(host.launched)}] ranks that mpirun starts")
    lines += [f"channel {name}: {folder}" for name, folder in host.channels.items()]
    heading = Heading(f"{host.group}/{host.name}  {host.address}  {owns}{leader}")
    return section(heading, *(Sentence(line, detail=True) for line in lines))


def _submission(submission: Submission) -> Iterator[Section]:
    """What is sent to a platform, what is stored before, and what must be allowed."""
    yield section(*sentences(f"upload: {upload.what}: {upload.to}" for upload in submission.uploads))
    for party, permissions in submission.permissions.items():
        rows = (
            (" ".join(each.actions), "optional" if each.optional else "", " ".join(each.resources), each.why)
            for each in permissions
        )
        yield section(table((f"actions that the {party} needs", "", "on", "for"), rows))
    heading = Heading(f"{submission.operation} in {submission.region}:")
    yield section(heading, Sentence(json.dumps(submission.request, indent=2)))


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

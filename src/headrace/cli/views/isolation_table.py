"""`headrace doctor` without a command: how this machine isolates the hosts of a job. It only shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.insight.render.document import Document, Heading, Sentence, document, section

if TYPE_CHECKING:
    from headrace.instance.isolation_level import Isolation


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


def report(path: str, overrides: tuple[str, ...]) -> MachineReport:
    """Looks at this machine, and at a job file when there is one. Raises what `load_job` and `choose` raise."""
    from headrace.engines.local.isolation.choice import choose, found_here
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

"""The tables of `headrace feed status`, with rich. It shows values; it computes none."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cli.views.table import columns, console
from headrace.feed.client.server_status import Answer
from headrace.feed.pipelines.fingerprint import differences
from headrace.feed.wire.messages import Status
from headrace.insight.render.plain_text import duration


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.1f}"


def show_status(answers: Sequence[Answer]) -> None:
    """Prints a table of the servers, one of their executors and one of their clients, and what is wrong."""
    out = console()
    told = [answer.status for answer in answers if answer.status is not None]
    if told:
        counts = ("up", "executors", "busy", "restarts", "queue", "clients", "slices/s", "MB/s", "CPU s", "staging MB")
        servers = columns(("host", "address", "version", *counts), right=counts)
        for answer in answers:
            if answer.status is not None:
                servers.add(*_server(answer.endpoint.address, answer.status))
        slices = ("executor", "pid", "busy", "slices", "restarts")
        executors = columns(("host", *slices), right=slices)
        clients = columns(("host", "client", "rank", "of"), right=("rank", "of"))
        made = ("clients", "queue", "slices", "MB", "staging MB")
        jobs = columns(("host", "job", *made), right=made)
        for status in told:
            for each in status.executors:
                busy = "yes" if each.busy else "no"
                executors.add(status.host, str(each.number), str(each.pid), busy, str(each.slices), str(each.restarts))
            for job in status.jobs:
                sums = str(job.queue), str(job.slices), _megabytes(job.bytes), _megabytes(job.staging_bytes)
                jobs.add(status.host, job.name or "not named", str(job.clients), *sums)
            for client in status.clients:
                clients.add(status.host, client.name, str(client.rank), str(client.world_size))
        for each_table in (servers, executors, clients, jobs):
            if each_table.rows:
                out.print(each_table)
                out.print()
    for other in told[1:]:
        for difference in differences(told[0].numerics, other.numerics):
            out.print(f"numerics of {told[0].host} and {other.host} differ: {difference}")
    for answer in answers:
        if answer.status is None:
            out.print(f"{answer.endpoint.name}: {answer.reason}", style="red", markup=False)


def _server(address: str, status: Status) -> list[str]:
    return [
        status.host,
        address,
        status.version,
        duration(status.uptime),
        str(len(status.executors)),
        str(sum(executor.busy for executor in status.executors)),
        str(sum(executor.restarts for executor in status.executors)),
        str(status.queue),
        str(len(status.clients)),
        f"{status.slices_per_second:.1f}",
        _megabytes(status.bytes_per_second),
        f"{status.cpu_seconds:.1f}",
        _megabytes(status.staging_bytes),
    ]

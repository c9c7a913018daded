"""`headrace feed status` as a document. It shows values; it computes none."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.feed.client.server_status import Answer
from headrace.feed.pipelines.fingerprint import differences
from headrace.feed.wire.messages import Status
from headrace.insight.render.document import Document, document, section, sentences, table
from headrace.insight.render.plain_text import duration


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.1f}"


def status_document(answers: Sequence[Answer]) -> Document:
    """Returns a table of the servers, one of their executors and one of their clients, and what is wrong."""
    known = [answer.status for answer in answers if answer.status is not None]
    counts = ("up", "executors", "busy", "restarts", "queue", "clients", "slices/s", "MB/s", "CPU s", "staging MB")
    slices = ("executor", "pid", "busy", "slices", "restarts")
    sums = ("clients", "queue", "slices", "MB", "staging MB")
    tables = (
        table(
            ("host", "address", "version", *counts),
            (_server(answer.endpoint.address, answer.status) for answer in answers if answer.status is not None),
            counts,
        ),
        table(
            ("host", *slices),
            (
                (
                    status.host,
                    str(each.number),
                    str(each.pid),
                    "yes" if each.busy else "no",
                    str(each.slices),
                    str(each.restarts),
                )
                for status in known
                for each in status.executors
            ),
            slices,
        ),
        table(
            ("host", "client", "rank", "of"),
            (
                (status.host, client.name, str(client.rank), str(client.world_size))
                for status in known
                for client in status.clients
            ),
            ("rank", "of"),
        ),
        table(
            ("host", "job", *sums),
            (
                (
                    status.host,
                    job.name or "not named",
                    *map(str, (job.clients, job.queue, job.slices)),
                    *map(_megabytes, (job.bytes, job.staging_bytes)),
                )
                for status in known
                for job in status.jobs
            ),
            sums,
        ),
    )
    differ = (
        f"numerics of {known[0].host} and {other.host} differ: {difference}"
        for other in known[1:]
        for difference in differences(known[0].numerics, other.numerics)
    )
    silent = (f"{answer.endpoint.name}: {answer.reason}" for answer in answers if answer.status is None)
    return document(*(section(each) for each in tables if each.rows), section(*sentences(differ), *sentences(silent)))


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

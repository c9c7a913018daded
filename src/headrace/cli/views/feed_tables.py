"""`headrace feed status` and `bench` as documents. They show values; they compute none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.feed.client.remote_pool import Answer
from headrace.feed.pipelines.purity import differences
from headrace.feed.wire.messages import Status
from headrace.insight.render.document import Document, document, section, sentences, table
from headrace.insight.render.plain_text import duration

if TYPE_CHECKING:
    from headrace.measuring.windows import Summary

_MEDIANS = (
    "batches/s and GB/s are medians over the rounds, [low .. high] their range; CPU s/GB counts all processes;\n"
    "x torch is the median of the ratios within a round; a small memcpy stays in the CPU's cache"
)


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.1f}"


def status_document(answers: Sequence[Answer]) -> Document:
    """Returns a table of the servers, one of their executors and one of their clients, and what is wrong."""
    known = [
        ((answer.status.host, answer.endpoint.address), answer.status)
        for answer in answers
        if answer.status is not None
    ]  # a name and an address each: several servers of one host have one name
    counts = ("up", "executors", "busy", "restarts", "queue", "clients", "slices/s", "MB/s", "CPU s", "staging MB")
    slices = ("executor", "pid", "busy", "slices", "restarts")
    sums = ("clients", "queue", "slices", "MB", "staging MB")
    where = ("host", "address")
    tables = (
        table(
            (*where, "version", *counts),
            ((*names, *_server(status)) for names, status in known),
            counts,
        ),
        table(
            (*where, *slices),
            (
                (
                    *names,
                    str(each.number),
                    str(each.pid),
                    "yes" if each.busy else "no",
                    str(each.slices),
                    str(each.restarts),
                )
                for names, status in known
                for each in status.executors
            ),
            slices,
        ),
        table(
            (*where, "client", "rank", "of"),
            (
                (*names, client.name, str(client.rank), str(client.world_size))
                for names, status in known
                for client in status.clients
            ),
            ("rank", "of"),
        ),
        table(
            (*where, "job", *sums),
            (
                (
                    *names,
                    job.name or "not named",
                    *map(str, (job.clients, job.queue, job.slices)),
                    *map(_megabytes, (job.bytes, job.staging_bytes)),
                )
                for names, status in known
                for job in status.jobs
            ),
            sums,
        ),
    )
    differ = (
        f"numerics of {' at '.join(known[0][0])} and {' at '.join(names)} differ: {difference}"
        for names, status in known[1:]
        for difference in differences(known[0][1].numerics, status.numerics)
    )
    silent = (f"{answer.endpoint.name}: {answer.reason}" for answer in answers if answer.status is None)
    return document(*(section(each) for each in tables if each.rows), section(*sentences(differ), *sentences(silent)))


def _server(status: Status) -> list[str]:
    return [
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


def bench_document(summaries: Sequence[Summary], facts: Mapping[str, object]) -> Document:
    """Returns what `headrace feed bench` has measured, and on which machine.

    Args:
        summaries: a row each.
        facts: of the machine, by name.
    """
    measured = ("batches/s", "[low .. high]", "GB/s", "CPU s/GB", "x torch")
    rows = (
        (
            each.shape,
            each.contender,
            f"{each.batches_per_second:.1f}",
            f"[{each.low:.1f} .. {each.high:.1f}]",
            f"{each.gigabytes_per_second:.3f}",
            f"{each.cpu_seconds_per_gb:.3f}",
            "" if each.against_torch is None else f"{each.against_torch:.2f}",
        )
        for each in summaries
    )
    machine = ", ".join(f"{name} {value}" for name, value in facts.items())
    return document(
        section(table(("batch", "contender", *measured), rows, measured)), section(*sentences((_MEDIANS, machine)))
    )

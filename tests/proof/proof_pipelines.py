"""The datasets of the proof as named pipelines. Feed servers import this module from their code directory."""

from __future__ import annotations

from typing import Any

from audited_data import (
    MIXTURE,
    FullDisk,
    LaneDocuments,
    LaneRows,
    LaneSamples,
    OneSource,
    Samples,
    decode,
    kept,
)

from headrace.feed import Source, mix, pack, pipeline, tar


@pipeline
def samples(n: int = 240, floats: int = 64, delay: float = 0.001, words: bool = False) -> Samples:
    return Samples(n, floats, delay, words)


@pipeline
def mixture(n: int, delay: float = 0.001) -> Source:
    sources = {name: OneSource(name, delay) for name in MIXTURE}
    return mix(sources, {name: weight for name, (_, weight) in MIXTURE.items()}, rows=n)


@pipeline
def mixed_lanes(n: int, delay: float = 0.0) -> Any:
    """A stream, n samples of a dataset without a count, and rows with a count; what is used up begins again."""
    a, c = (OneSource(name, delay) for name in "ac")
    sources = {"a": mix({"rows": a}, {"rows": 1}).filter(kept), "b": LaneSamples("b", n, delay), "c": c}
    return mix(sources, {name: weight for name, (_, weight) in MIXTURE.items()}, until="all")


@pipeline
def full_disk(n: int = 240) -> FullDisk:
    return FullDisk(n)


@pipeline
def lanes(n: int = 240, delay: float = 0.001) -> LaneRows:
    return LaneRows(n, delay)


@pipeline
def packed(n: int = 240, delay: float = 0.0, length: int = 32, method: Any = "best_fit", block: int = 16) -> Any:
    return pack(LaneDocuments(n, delay), length, method=method, block=block, separator=3)


@pipeline
def tars(n: int, folder: str, delay: float = 0.0) -> Source:
    source = tar(folder).map(lambda row: decode(row, delay))
    assert len(source) == n
    return source


def answer_twice(_: int) -> None:
    """A worker that sends every result twice: passed as `worker_init_fn`, it runs in the worker."""
    from headrace.feed.wire.framed_connection import FramedConnection
    from headrace.feed.wire.messages import Done, Message

    once = FramedConnection.send

    def twice(self: FramedConnection, message: Message, **options: Any) -> None:
        for _ in range(2 if isinstance(message, Done) else 1):
            once(self, message, **options)

    FramedConnection.send = twice  # type: ignore[method-assign]

"""The same shards by a feed server over TCP, on loopback, with as many executors as there are local workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.shards.peers import BATCH
from bench.shards.settings import Settings
from bench.shards.work import ROWS, TEXTS

from headrace import feed
from headrace.measuring.loopback import feed_server

ROOT = Path(__file__).resolve().parents[2]


@feed.pipeline
def shards(row: str, folder: str) -> feed.Source:
    """The decoded samples of a row."""
    return (feed.parquet if row in TEXTS else feed.tar)(folder).map(ROWS[row].decode)


@contextmanager
def headrace_tcp(row: str, folder: Path, settings: Settings) -> Iterator[Iterable[Any]]:
    with (
        feed_server(settings.workers, code=ROOT) as server,
        feed.DataLoader(
            shards(row=row, folder=str(folder)), BATCH, feed.Window(128, 64), seed=1, workers=server.address,
            secret_file=server.secret_file,
        ) as loader,
    ):  # fmt: skip
        yield loader

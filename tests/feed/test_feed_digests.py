"""Digests of facts stay what they are: states on disk, indexes and ranks of other versions hold them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headrace import feed
from headrace.feed.client.lane_homes import Holdings
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.mixture import mix
from headrace.feed.plan.orders.length_buckets import lengths_digest
from headrace.feed.plan.planner import plan_fingerprint
from headrace.feed.plan.shard_map import ShardMap, data_digest
from headrace.feed.plan.state_dict import Position, pipeline_name
from headrace.feed.sources.byte_ranges import Counted, Stamp
from headrace.feed.sources.shard_index import Entry
from headrace.feed.sources.source import Source
from headrace.feed.wire.messages import Mixing

SHARDS = [("a", 3), ("b", 4)]


class Rows(Source):
    def __init__(self, *, declared: bool = False) -> None:
        super().__init__(SHARDS, declared=declared, digests=["one", "two"])

    def read(self, shard: int, row: int) -> int:
        return 10 * shard + row


def _union() -> ShardMap:
    union = ShardMap()
    union.add(WorkerNumber(1), "host", SHARDS, ["one", "two"])
    union.fix()
    return union


def _holdings() -> Holdings:
    holdings = Holdings(4)
    for number, shard in enumerate(SHARDS, 1):
        holdings.add(WorkerNumber(number), f"host {number}", [shard], f"digest {number}")
    holdings.deal()
    return holdings


def _mixed(**rows: Source) -> list[str]:
    digests: list[str] = mix(rows, {name: place + 1 for place, name in enumerate(rows)}).shard_digests
    return digests


POSITION = Position(0, 0, 0, "headrace", True, False, 7, 5, 16, 2, window=(1024, 64))
ENTRY = Entry(Counted(Stamp(100, 200, 300, 400), 5, b"12345678"), 7, 8, 9, 10)
DIGESTS: dict[str, Callable[[], object]] = {
    "data": lambda: data_digest(SHARDS, ["one", "two"]),
    "union": lambda: _union().digest,
    "shards of a plan": lambda: _union().fingerprint(),
    "plan": lambda: plan_fingerprint("m:f()", POSITION, (2, 32)),
    "pipeline": lambda: pipeline_name(Pipeline("m:f", {"folder": "x", "rows": 3})),
    "lengths": lambda: lengths_digest(np.array([3, 1, 2])),
    "shard": lambda: ENTRY.digest,
    "holdings": lambda: _holdings().digest,
    "mixture": lambda: _mixed(x=Rows(), y=Rows()),
    "mixture of declared sources": lambda: _mixed(x=Rows(declared=True), y=Rows(declared=True)),
    "stream": lambda: Rows().filter(bool).shard_digests,
    "stream of a mixture": lambda: mix({"x": Rows(), "y": Rows()}, {"x": 1, "y": 2}).filter(bool).shard_digests,
    "mixed stream": lambda: mix({"x": Rows().filter(bool), "y": Rows()}, {"x": 1, "y": 2}).shard_digests,
    "packing": lambda: feed.pack(Rows(), 16, separator=1).shard_digests,
    "mixing": lambda: Mixing(("x", "y"), (), (0.1 + 0.2, 1.0)).name,
}
PINNED: dict[str, object] = {
    "data": "af39a9c5871b1ca4",
    "union": "af39a9c5871b1ca4",
    "shards of a plan": "bb23733d6c31e5c0509bfcba4b6bef0a",
    "plan": "3eee91ddb40d2226894b6bfd917e5591",
    "pipeline": "m:f 3fa1c9f457bf1e97",
    "lengths": "d0cee98651e9db4f",
    "shard": "06b6d885dd674761",
    "holdings": "3b3f165a6b82353a in 2 parts",
    "mixture": ["db5d0c7ba7eb2d22"],
    "mixture of declared sources": ["one", "two", "one", "two"],
    "stream": ["12ea5beaab812e11"],
    "stream of a mixture": ["86cdcae6ca2fa8d8"],
    "mixed stream": ["fc19efecb9ba7e10"],
    "packing": ["9f7f9fffb717e192"],
    "mixing": "x=0.3 y=1 until=first 9df6327f4a43ed31",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_digest_of_facts_is_what_it_was(name: str) -> None:
    assert DIGESTS[name]() == PINNED[name]

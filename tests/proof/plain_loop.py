"""The oracle: a plain loop that knows the dataset, the documented order and the documented seeding rule, not headrace.

python plain_loop.py CONFIG.json   config: audit, n, batch, seed, epochs, rank, world, dataset, pipeline, window, lanes
"""

import itertools
import json
import random
import struct
import sys
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from audit import Writer
from audited_data import MIXTURE, OneSource, Samples, TarRows, lane_documents, lane_rows
from keyed_order import keyed_order, window_order
from mixed_rows import mixed_rows
from packed_reference import sequences
from torch.utils.data import default_collate

config = json.loads(open(sys.argv[1]).read())  # noqa: PTH123, SIM115
n, batch, seed, rank, world = (config[name] for name in ("n", "batch", "seed", "rank", "world"))
audit = Writer(config["audit"])


def set_generators(key: bytes) -> None:
    random.seed(int.from_bytes(key, "little"))
    np.random.seed(struct.unpack("<4I", key))
    torch.default_generator.manual_seed(int.from_bytes(key[:8], "little"))


def of_lane(purpose: bytes, epoch: int, number: int, lane: int, lanes: int) -> None:
    packed = struct.pack("<QQQ", seed, epoch, number * lanes + lane)
    set_generators(blake2b(packed, digest_size=16, person=purpose).digest())


def packed_lane(epoch: int, lane: int, lanes: int) -> Iterator[Any]:
    """The packed documents of a lane: the generators are set before each document."""

    def documents() -> Iterator[list[int]]:
        made = lane_documents(n, lane, lanes)
        for number in itertools.count():
            of_lane(b"lane document", epoch, number, lane, lanes)
            document = next(made, None)
            if document is None:
                return
            yield document

    given = {name: value for name, value in config["dataset"].items() if name != "delay"}
    return sequences(documents(), **given)


def lanes_in_turn(lanes: int) -> None:
    """The lanes of this rank give a batch each, in turn, until they have ended."""
    packs = config["pipeline"] == "packed"
    for epoch in range(config["epochs"] if lanes else 0):
        live = {
            lane: packed_lane(epoch, lane, lanes) if packs else lane_rows(n, lane, lanes)
            for lane in range(rank, lanes, world)
        }
        first = step = 0
        while live:
            for lane in list(live):
                rows = []
                for k in range(first, first + batch):
                    of_lane(b"lane output", epoch, k, lane, lanes)
                    rows += [next(live[lane], None)]
                rows = [row for row in rows if row is not None]
                if len(rows) < batch:
                    del live[lane]
                if rows:
                    audit.add(epoch, step, default_collate(rows))
                    step += 1
            first += batch


lanes_in_turn(config["lanes"])


def mixture(epoch: int) -> list[tuple[int, int]]:
    """The source and row of every sample of an epoch; the sources go on in the next one."""
    sizes, weights = zip(*MIXTURE.values(), strict=True)
    order = list(mixed_rows(list(MIXTURE), sizes, {0: weights}, n, seed, epoch, config["window"] or True, taken))
    for source, _ in order:
        taken[source] += 1
    return order


kinds = {"samples": Samples, "tars": TarRows, "lanes": None, "packed": None, "mixture": None}
kind = kinds[config["pipeline"]]
dataset = kind and kind(n=n, **config["dataset"])
sources = [OneSource(name, 0.0) for name in MIXTURE] if config["pipeline"] == "mixture" else []
taken = [0] * len(sources)
for epoch in range(0 if config["lanes"] else config["epochs"]):
    key = f"{seed}/{epoch}".encode()
    order = window_order(n, key, *config["window"]) if config["window"] else keyed_order(n, key)
    order = mixture(epoch) if sources else order
    for step, start in enumerate(range(0, n, batch * world)):
        rows = []
        for position in range(start + rank * batch, min(n, start + (rank + 1) * batch)):
            key = blake2b(struct.pack("<QQQ", seed, epoch, position), digest_size=16, person=b"sample").digest()
            set_generators(key)
            rows.append(sources[order[position][0]][order[position][1]] if sources else dataset[order[position]])
        audit.add(epoch, step, default_collate(rows))
assert not any(name.startswith("headrace") for name in sys.modules)

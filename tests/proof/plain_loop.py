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
from audited_data import MIXTURE, OneSource, Samples, TarRows, kept, lane_documents, lane_rows, lane_samples
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


def of_source(epoch: int, lane: int, lanes: int, source: int, passes: int, number: int) -> None:
    """Sets the generators for an output of a source: its seed follows from the mixture's."""
    own = blake2b(struct.pack("<QQQ", seed, passes, source), digest_size=16, person=b"lane source").digest()
    packed = struct.pack("<QQQ", int.from_bytes(own[:7], "little"), epoch, number * lanes + lane)
    set_generators(blake2b(packed, digest_size=16, person=b"lane source").digest())


def source_in_lane(name: str, lane: int, lanes: int) -> Iterator[Any]:
    """One pass over what a source has in a lane: every l-th sample without a count, else the l-th part of the rows."""
    if name == "b":
        return lane_samples(name, n, lane, lanes)
    count = MIXTURE[name][0]
    rows = map(OneSource(name, 0.0).__getitem__, range(count * lane // lanes, count * (lane + 1) // lanes))
    return filter(kept, rows) if name == "a" else rows


def mixed_lane(epoch: int, lane: int, lanes: int) -> Iterator[Any]:
    """A lane of a mixture, until all of its sources were used up once."""
    names, weights = list(MIXTURE), [weight for _, weight in MIXTURE.values()]
    place: Any = f"{epoch}/{lane}"
    live, taken, passes = [source_in_lane(name, lane, lanes) for name in names], [0] * 3, [0] * 3
    for source, _ in mixed_rows(names, [1] * 3, {0: weights}, 64 * 99, seed, place, shuffle=False):
        output = None
        while output is None:
            of_source(epoch, lane, lanes, source, passes[source], taken[source])
            output = next(live[source], None)
            if output is None:
                live[source], taken[source] = source_in_lane(names[source], lane, lanes), 0
                passes[source] += 1
                if all(passes):
                    return
        taken[source] += 1
        yield output
    raise AssertionError("too few turns")


def one_lane(epoch: int, lane: int, lanes: int) -> Iterator[Any]:
    if config["pipeline"] == "packed":
        return packed_lane(epoch, lane, lanes)
    return mixed_lane(epoch, lane, lanes) if config["pipeline"] == "mixed_lanes" else lane_rows(n, lane, lanes)


def lanes_in_turn(lanes: int) -> None:
    """The lanes of this rank give a batch each, in turn, until they have ended."""
    for epoch in range(config["epochs"] if lanes else 0):
        live = {lane: one_lane(epoch, lane, lanes) for lane in range(rank, lanes, world)}
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


kinds = {"samples": Samples, "tars": TarRows, "lanes": None, "packed": None, "mixture": None, "mixed_lanes": None}
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

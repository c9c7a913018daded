"""Which workers may be asked for a lane, and which one goes on with it.

Where all workers hold the same data, any of them may be asked for any lane. Where hosts hold different shards, what a
host holds is a holding: other hosts may hold all of it too, and no two holdings have a shard in common. Each lane is
read from one holding: it is part i of n of its rows. So what a lane gives depends on the number of lanes and on which
shards lie together, and not on which hosts hold them.

A lane stays with one worker, whose reader stands where the next outputs are asked for. When that worker is gone, the
lane goes to the one with the fewest; but no worker takes more than its share of the lanes, so that one that is started
again gets its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from headrace.errors import PipelineError
from headrace.feed.batch.plain_values import digest_of
from headrace.feed.client.worker_pool import Worker
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.plan.lane_pass import LaneDraw
from headrace.feed.plan.orders.mixed_order import Apportion
from headrace.feed.plan.shard_map import Shards, data_digest
from headrace.feed.wire.messages import Draw

_STRIDES = 1024  # ranks or slots for which lanes are dealt evenly
_ALL_OR_OTHERS = (
    "data without a count (.filter, .flat_map, .pack) are read by holding: let two hosts hold the same shards, or none "
    "in common. With ShardedByS3Key each host has its own, with FullyReplicated every host has all"
)


def deal(rows: Sequence[int], lanes: int) -> list[int]:
    """Deals lanes to holdings, in proportion to their rows, at least one to each.

    For every number of ranks W that divides the lanes, the lanes r, r + W, r + 2 W, ... have their part of each
    holding, as nearly as whole numbers allow.

    Args:
        rows: of each holding.
        lanes: how many, at least as many as holdings.

    Returns:
        The number of the holding of each lane.
    """
    counts = Apportion([max(1, each) for each in rows]).counts(lanes)
    while 0 in counts:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    wanted, left = np.array(counts, np.int64), np.array(counts, np.int64)
    strides = np.array([w for w in range(1, min(lanes, _STRIDES) + 1) if lanes % w == 0], np.int64)
    dealt = np.zeros((len(strides), int(strides.max()), len(rows)), np.int64)
    every, found = np.arange(len(strides)), []
    for lane in range(lanes):
        before = dealt[every, lane % strides]  # of each holding, among the lanes of the same rank so far
        owed = ((before.sum(axis=1, keepdims=True) + 1) * wanted - lanes * before).sum(axis=0)
        holding = int(np.argmax(np.where(left > 0, owed, np.iinfo(np.int64).min)))
        dealt[every, lane % strides, holding] += 1
        left[holding] -= 1
        found.append(holding)
    return found


class _Holding(NamedTuple):
    """What a worker reads its lanes from.

    Attributes:
        shards: keys and samples, sorted by key.
        digest: of what they hold, and of what is made of it.
    """

    shards: tuple[tuple[str, int], ...]
    digest: str


class Holdings:
    """What the workers hold, and which lanes are read from which holding; see the module.

    Before lanes are dealt, and where there is one holding, every worker can read every lane.

    Args:
        lanes: of the loader.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._held: dict[WorkerNumber, tuple[_Holding, str]] = {}  # and the worker's name
        self._asked: dict[WorkerNumber, _Holding] = {}  # of those that are used
        self._known: dict[_Holding, _Holding] = {}  # each by itself, sorted by their smallest keys
        self._of: list[_Holding] = []  # by lane
        self._shares: list[tuple[int, int]] = []  # lane -> part, of how many

    def add(self, worker: WorkerNumber, name: str, shards: Shards, digest: str) -> bool:
        """A worker announces what it holds. Returns whether it can be used: once dealt, holdings stay what they are.

        Args:
            worker, name: who.
            shards: keys and samples, sorted by key.
            digest: of what they hold, and of what is made of it.
        """
        holding = _Holding(tuple((key, samples) for key, samples in shards), digest)
        if self._known and holding not in self._known:
            return False
        self._held[worker] = holding, name
        self._asked[worker] = self._known.get(holding, holding)
        return True

    def remove(self, worker: WorkerNumber) -> None:
        """A worker is gone."""
        self._held.pop(worker, None)
        self._asked.pop(worker, None)

    def refuse(self, worker: WorkerNumber) -> None:
        """A worker is not used. What it holds is of the data all the same: nothing is passed over."""
        self._asked.pop(worker, None)

    def deal(self) -> None:
        """Deals the lanes: all workers have announced what they hold.

        Raises:
            PipelineError: two holdings have a shard in common, or there are more of them than lanes.
        """
        names: dict[_Holding, str] = {}
        for holding, name in sorted(self._held.values(), key=lambda held: held[1]):
            names.setdefault(holding, name)
        owners: dict[str, _Holding] = {}
        for holding, name in names.items():
            for key, _ in holding.shards:
                other = owners.setdefault(key, holding)
                if other is not holding:
                    _refuse(key, other, names[other], holding, name)
        known = sorted(names, key=lambda holding: holding.shards[0])
        if self._lanes < len(known):
            raise PipelineError(
                f"the hosts hold {len(known)} different sets of shards, and the loader has {self._lanes} lanes: "
                "each lane is read from one set",
                hint=f"give the loader num_shards={len(known)} or more; at least twice the number of workers is best",
            )
        numbers = deal([sum(samples for _, samples in holding.shards) for holding in known], self._lanes)
        counts, parts = Counter(numbers), Counter[int]()
        for number in numbers:
            self._shares.append((parts[number], counts[number]))
            parts[number] += 1
        self._of, self._known = [known[number] for number in numbers], {holding: holding for holding in known}
        self._asked = {worker: self._known[holding] for worker, holding in self._asked.items()}

    @property
    def apart(self) -> bool:
        """Whether there are several, so that not every worker can read every lane."""
        return len(self._known) > 1

    @property
    def digest(self) -> str:
        """What tells the data, and which of them lie together; where all lie together, their digest alone."""
        if not self.apart:
            return data_digest([("", -1)], [holding.digest for holding in self._known])
        return f"{digest_of([*self._known], b'holdings')} in {len(self._known)} parts"

    def share(self, lane: int) -> tuple[int, int] | None:
        """Returns which part of its holding's rows a lane is, and of how many; None where all are one holding."""
        return self._shares[lane] if self.apart else None

    def readers(self, lane: int, workers: Mapping[WorkerNumber, Worker]) -> Mapping[WorkerNumber, Worker]:
        """Returns those of some workers that can read a lane."""
        if not self.apart:
            return workers
        return {number: worker for number, worker in workers.items() if self._asked.get(number) is self._of[lane]}

    def together(self, lane: int, other: int) -> bool:
        """Returns whether two lanes, which are dealt, are of one holding."""
        return self._of[lane] is self._of[other]

    def lost(self, lane: int) -> bool:
        """Returns whether no worker can read a lane, which is dealt, any more."""
        return all(holding is not self._of[lane] for holding in self._asked.values())


def _refuse(key: str, one: _Holding, its_name: str, other: _Holding, name: str) -> NoReturn:
    if one.shards == other.shards:
        raise PipelineError(
            f"{its_name} and {name} hold shards of the same names and sizes, and not the same data: {key!r} is one",
            hint="workers that hold the same key must hold the same data; check the channels of these hosts",
        )
    mine, others = ({found for found, _ in holding.shards} for holding in (one, other))
    single, host = (mine - others, its_name) if mine - others else (others - mine, name)
    raise PipelineError(
        f"{its_name} and {name} both hold the shard {key!r}, and {min(single)!r} is on {host} alone", _ALL_OR_OTHERS
    )


class LaneHomes:
    """See the module.

    Args:
        holdings: who can read which lane; None where every worker can read all.

    Attributes:
        executors: of all workers, those included that will be started.
    """

    def __init__(self, holdings: Holdings | None = None) -> None:
        self._homes: dict[int, WorkerNumber] = {}
        self.executors = 1
        self.holdings = holdings or Holdings(0)

    def quick(self, draw: LaneDraw, workers: Mapping[WorkerNumber, Worker]) -> Mapping[WorkerNumber, Worker]:
        """Returns those of some workers that can make a draw without a long replay."""
        return self.holdings.readers(draw.cursor.lane, workers) if draw.cheap() else {}

    def able(self, lane: int, workers: Mapping[WorkerNumber, Worker]) -> Mapping[WorkerNumber, Worker]:
        """Returns who may be asked for a lane: its worker, or those that have the fewest lanes and may take more."""
        readers = self.holdings.readers(lane, workers)
        home = self._homes.get(lane)
        if home is not None and home in readers:
            return {home: readers[home]}
        homes, executors = self._homes, self.executors
        if readers is not workers:  # lanes of other holdings have other workers
            homes = {other: number for other, number in homes.items() if self.holdings.together(lane, other)}
            executors = sum(worker.executors for worker in readers.values())
        held = Counter(number for number in homes.values() if number in readers)
        lanes = len(homes.keys() | {lane})
        share = max(1, math.ceil(lanes / max(1, executors)))
        shares = {
            number: held[number] / worker.executors
            for number, worker in readers.items()
            if held[number] < share * worker.executors
        }
        least = min(shares.values(), default=0.0)
        return {number: readers[number] for number, has in shares.items() if has == least}

    def settle(self, lane: int, worker: WorkerNumber) -> None:
        """A worker was asked for a lane: it goes on with it."""
        self._homes[lane] = worker

    def asked(self, draw: LaneDraw) -> Draw:
        """Returns what a worker is asked for a draw; see `LaneDraw.request`."""
        return draw.request(self.holdings.share(draw.cursor.lane))

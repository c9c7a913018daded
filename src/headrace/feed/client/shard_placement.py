"""The client's side of sharded data: it gathers what the workers hold, and places parts where their samples are.

Every worker must have told what it holds before the first plan is made: without one of them, nobody knows what would
be missing. Then a batch is cut into the longest runs of rows that the same sources hold, and each is asked of one of
them. When a source is gone or comes back, what is not under way is cut anew. Rows that nobody holds any more are waited
for as long as a lost host is, then the run ends with an error that names them.

A batch that cannot be written row by row (a collate function, samples that do not stack) must be made by a source that
holds all of it. How rows are laid out must be known before they can be asked of several sources: see `probing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headrace.errors import PipelineError, WorkersLost
from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.work_units import Bundle, Part
from headrace.feed.client.worker_pool import RECOVER_SECONDS, START_SECONDS, Supply, Worker
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.shard_map import ShardMap
from headrace.feed.wire import messages


class Sharding:
    """See the module.

    Args:
        supply: tells whom is waited for.
        schedule: what is placed.
        opening: the pipeline, as it is opened on every worker.
        warn: called with what the user should know.

    Attributes:
        map: who holds what.
        length: of the dataset, over all workers; None until it is known.
        begun: whether a worker has declared shards, so that all must.
        whole: whether batches are always made whole.
    """

    def __init__(self, supply: Supply, schedule: Schedule, opening: messages.Open, warn: Callable[[str], None]) -> None:
        self.map = ShardMap()
        self.begun = False
        self.length: int | None = None
        self._supply = supply
        self._schedule = schedule
        self._opening = opening
        self._warn = warn
        self.whole = False
        self._since = 0.0
        self._uniform = False
        self._orphaned: float | None = None

    # Gathering

    def opened(self, worker: Worker, message: messages.Opened, now: float) -> bool:
        """A worker has opened the pipeline.

        Args:
            worker: who.
            message: what it told.
            now: monotonic seconds.

        Returns:
            Whether it can be used.

        Raises:
            PipelineError: their data differ: the length, whether they declare shards, or the size of a replica.
        """
        if bool(message.shards) != self.begun and (self.length is not None or self.begun):
            has, others = ("", "not ") if message.shards else ("not ", "")
            raise PipelineError(
                f"on {worker.name} the dataset does {has}declare shards, elsewhere it does {others}declare them",
                hint="all workers must run the same code; whether there is __shards__ must not depend on the host",
            )
        if not message.shards:
            if self.length not in (None, message.length):
                raise PipelineError(
                    f"the dataset has {message.length} samples on {worker.name} and {self.length} elsewhere",
                    hint="all workers must see the same data; check the channel on that host",
                )
            self.length = message.length
            return True
        if not self.begun:
            self.begun, self._since, self.whole = True, now, message.whole
        before = len(self.map.unknown)
        self.map.add(worker.number, worker.name, message.shards)
        if len(self.map.unknown) > before:
            self._warn(
                f"{worker.name} came late and holds shards that are not in this run, as {self.map.unknown[before]!r}: "
                "they are not loaded"
            )
        if self._uniform and not self.map.uniform:
            self.map.remove(worker.number)
            reason = f"{worker.name} does not hold the shards any more that it held before"
            self._supply.refuse(worker, reason)
            self._warn(f"{reason}; it is not used")
            return False
        return True

    def settle(self, now: float) -> bool:
        """Makes the union once all workers have told. Returns whether it was made just now.

        Raises:
            WorkersLost: one does not come in time.
        """
        if not self.begun or self.map.fixed:
            return False
        absent = self._supply.absent()
        if absent:
            if now - self._since > START_SECONDS:
                raise WorkersLost(
                    f"{', '.join(absent)} did not open the pipeline within {START_SECONDS:.0f} s, so nobody knows "
                    f"what it holds: {self._supply.describe()}",
                    hint="start that host again, or leave it out of the list of workers",
                )
            return False
        self.map.fix()
        self.length = self.map.length
        self._uniform = self.map.uniform
        self._schedule.placement = None if self._uniform else self
        return True

    @property
    def gathering(self) -> bool:
        """Whether workers are waited for that have not told what they hold."""
        return self.begun and not self.map.fixed

    @property
    def places(self) -> bool:
        """Whether workers hold different data, so that parts must be placed."""
        return self.map.fixed and not self._uniform

    @property
    def translation(self) -> ShardMap | None:
        """What translates the keys for a worker; None when they are the same for all."""
        return self.map if self.places else None

    @property
    def pipeline(self) -> int:
        """Number of the pipeline."""
        return self._opening.pipeline

    def comparison(self) -> messages.Open | None:
        """Returns what lets a feed server compare the union with that of other ranks; None without ranks."""
        if not self.map.fixed or not self._opening.plan:
            return None
        loader = f"{self._opening.loader} (shards)"
        return msgspec.structs.replace(self._opening, loader=loader, plan=self.map.fingerprint())

    # Placing

    def cut(self, bundle: Bundle, *, most: int, stackable: bool) -> None:
        """Cuts a bundle into parts of at most `most` rows; leaves it when the layout must be learned first."""
        try:
            if self.whole:
                bundle.parts = [Part(bundle, 0, bundle.rows, whole=True, deaths=bundle.deaths)]
                self.place_whole(bundle)
                return
            runs = self.map.runs(bundle.plan.keys)
        except PipelineError as error:
            bundle.failures[0] = error
            return
        if len(runs) == 1 or stackable:
            step = most if stackable else bundle.rows
            bundle.parts = self._parts(bundle, 0, bundle.rows, step, bundle.deaths)

    def _parts(self, bundle: Bundle, first: int, last: int, most: int, deaths: int) -> list[Part]:
        parts = []
        for run in self.map.runs(bundle.plan.keys[first:last]):
            begin, end = first + run.first, first + run.last
            for row in range(begin, end, most) if end > begin else (begin,):
                stop = min(row + most, end)
                parts.append(Part(bundle, row, stop, whole=False, deaths=deaths, holders=run.holders))
        return parts

    def place_whole(self, bundle: Bundle) -> None:
        """Finds who holds all of a batch that is made whole. If nobody ever can, the batch fails."""
        keys = [key for row, key in enumerate(bundle.plan.keys) if row not in bundle.left_out]
        [part] = bundle.parts
        part.holders = self.map.holders(keys)
        if not part.holders and all(run.holders for run in self.map.runs(keys)):
            bundle.failures[0] = PipelineError(
                f"no host holds all samples of batch {bundle.plan.step} (indices {keys[:8]}...), and it cannot be put "
                "together of rows: it has a collate function, samples that do not stack, or samples that are skipped",
                hint="let the samples stack and leave out collate_fn (pad in the dataset, say), or give every host all "
                "data: FullyReplicated",
            )

    def gone(self, worker: int) -> None:
        """A worker is gone, and no source any more."""
        self.map.remove(worker)
        self.changed()

    def changed(self) -> None:
        """Cuts anew what is not under way: a source has come or gone."""
        if not self.places:
            return
        for bundle in self._schedule.bundles.values():
            waiting = [part for part in bundle.parts if not part.done and not part.requests]
            if not waiting:
                continue
            if waiting[0].whole:
                self.place_whole(bundle)
                continue
            parts = [part for part in bundle.parts if part.done or part.requests]
            for part in waiting:
                parts += self._parts(bundle, part.first, part.last, max(1, part.rows), part.deaths)
            bundle.parts = sorted(parts, key=lambda part: part.first)

    def judge(self, now: float) -> None:
        """Raises WorkersLost when rows have had no holder for longer than a lost host is waited for."""
        bundles = self._schedule.bundles.values() if self.places else ()
        orphaned = any(
            part.holders is not None and not part.holders and not part.done
            for bundle in bundles if not bundle.failed for part in bundle.parts
        )  # fmt: skip
        if not orphaned:
            self._orphaned = None
            return
        self._orphaned = now if self._orphaned is None else self._orphaned
        if now - self._orphaned > RECOVER_SECONDS:
            raise WorkersLost(
                f"data are lost: {self.map.describe_lost()}; {self._supply.describe()}",
                hint="start that host again and resume, or give the channel to more than one host",
            )


def detached(plan: BatchPlan, rows: int, *, whole: bool = False) -> Part:
    """Returns a part that stands in no line: its answer is taken elsewhere."""
    empty: Sequence[object] = []
    return Part(Bundle((BatchPlan(plan.epoch, plan.step, 0, empty, 0),)), 0, rows, whole)

"""Batches of lanes: one pass over a dataset without a count.

Draws come in the order of the plan (`lane_pass`); those behind a lane's end hold nothing and are passed over. Where a
global batch takes of several slots, a draw holds a lane's outputs one by one, for some batches, and the batches are
made here of what came of all the rank's slots. When the dataset raises in a lane, that is told once, and the lane has
ended: behind the exception nothing of it can be made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from headrace.errors import PipelineError
from headrace.feed.client.policy import SessionStats, Skipped
from headrace.feed.loader.supply import Made
from headrace.feed.pipelines.fetch import Built, RowFailed, collated
from headrace.feed.pipelines.lane_datasets import one_rank_shown
from headrace.feed.pipelines.seeds import PreservedGenerators
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.lane_pass import LaneDraw, LanePart, LanePass
from headrace.feed.plan.pass_progress import Progress
from headrace.feed.worker.lane_reader import LaneFailed, LaneReaders


class LaneBatches:
    """A pass over lanes: see `Pass`, and the module.

    Args:
        built: the pipeline, as far as batches are made here.
        draws: of the pass.
        progress: of the pass; kept here.
        stats: counters to add to.
        make: makes in this process what is asked of lanes.
    """

    gives_what_came = False

    def __init__(
        self, built: Built, draws: LanePass, progress: Progress, stats: SessionStats, make: Callable[[BatchPlan], Made]
    ) -> None:
        self.make = make
        self._built, self._draws, self._progress, self._steps = built, draws, progress, draws.steps
        self._stats = stats
        self.epoch, self.slots = draws.epoch, draws.slots
        self._number = 0  # of the next draw
        self.lacking, self.held, self.plans_for = draws.lacking, draws.held, draws.plans_for

    def needed(self) -> int | None:
        """See `Pass`. What another rank's state had consumed is made and passed over."""
        while self._steps is None or self._draws.step < self._steps:
            if self._draws.lacking():
                return self._number
            if not self._draws.replay or self._parts() is None:
                break
            self._draws.replay -= 1
        return None

    def came(self, number: int, made: Made | None) -> None:
        """See `Pass`."""
        draw = self._draws.draws[number]
        self._number = number + 1
        passed = self._draws.keep(number, made[0] if made is not None else None)
        if passed and draw.drawn is not None and not self._draws.replay:
            self._list(LanePart(draw, 0, 0, ()), self._draws.step)

    def failed(self, number: int) -> bool:
        """See `Pass`: the lane has ended."""
        draw = self._draws.draws[number]
        told = draw.cursor.failed
        draw.failed, self._number = True, number + 1
        self._draws.keep(number, None)
        return not told

    def batch(self) -> Made | None:
        """See `Pass`.

        Raises:
            PipelineError: the lanes hold fewer batches than `steps_per_epoch`.
        """
        parts = self._parts()
        while parts is not None and self._draws.replay:
            self._draws.replay -= 1
            parts = self._parts()
        if parts is None:
            return None
        self._progress.step = self._draws.step
        for part in parts:
            self._list(part, self._draws.step - 1)
        return self._batch(parts)

    def _parts(self) -> list[LanePart] | None:
        """Takes what the next batch is made of; None at the end."""
        draws, steps = self._draws, self._steps
        if steps is not None and draws.step >= steps:
            return None
        ended = draws.ended()
        if ended and steps is not None:
            raise PipelineError(
                f"this rank has {draws.step} batches, and steps_per_epoch is {steps}",
                hint="set steps_per_epoch to what every rank has, or fewer. With global_batch_size= a batch takes "
                "of all slots of lanes, so the slot with the fewest outputs decides",
            )
        if ended == draws.slots or (ended and draws.drop_last):
            return None
        return draws.take()

    def _list(self, part: LanePart, step: int) -> None:
        """Lists the rows that were left out before some outputs of a draw, and behind its last one."""
        draw, first, last, _ = part
        assert draw.drawn is not None, "it has come"
        for row, reason, output in draw.drawn.skipped:
            if first <= output - draw.first and (output - draw.first < last or last == draw.drawn.rows):
                self._stats.skipped.append(Skipped(self._draws.epoch, step, row, reason))

    def _batch(self, parts: list[LanePart]) -> Made:
        for draw, first, last, _ in parts:
            drawn = draw.drawn
            assert drawn is not None, "it has come"
            if drawn.tokens or drawn.padding or drawn.sources:
                self._stats.tokens += sum(drawn.tokens[first:last])
                self._stats.padding += sum(drawn.padding[first:last])
                self._stats.sources.update(drawn.sources[first:last])
        rows = sum(part.last - part.first for part in parts)
        if self._draws.slots == 1:
            return parts[0].outputs, rows
        address = self._draws.address_of(parts[0].draw, parts[0].first)
        outputs = [output for part in parts for output in part.outputs]
        try:
            if self._built.default_collate:
                return collated(self._built, outputs, address), rows
            with PreservedGenerators():
                return collated(self._built, outputs, address), rows
        except RowFailed as failed:
            error = failed.__cause__
            assert error is not None
            raise error  # noqa: B904 - the user's own, as it was


class LaneMaker:
    """Makes what is asked of lanes in this process.

    Args:
        built: the pipeline.
        readers: of the lanes.
        warn: called with what the user should know.
        shared: whether other ranks have lanes too.
    """

    def __init__(
        self, built: Built, readers: LaneReaders, warn: Callable[[str, type[Warning]], None], *, shared: bool
    ) -> None:
        self._built, self._readers, self._warn = built, readers, warn
        self._shown = one_rank_shown if shared else contextlib.nullcontext
        self._noted: set[str] = set()

    def __call__(self, plan: BatchPlan) -> Made:
        """Returns the outputs of a draw, or the batch that they are. Raises what the dataset raised."""
        assert plan.draw is not None, "of a lane"
        with self._shown():
            return self._make(plan, plan.draw)

    def _make(self, plan: BatchPlan, draw: LaneDraw) -> Made:
        behind = 1
        try:
            while behind:
                outputs, drawn = self._readers.draw(plan.epoch, plan.seed, draw.request())
                behind = drawn.behind
            batch: Any = outputs
            if outputs and not draw.part:
                batch = collated(self._built, outputs, (plan.seed, plan.epoch, plan.position))
        except (LaneFailed, RowFailed) as failed:
            error = failed.__cause__
            assert error is not None
            raise error  # noqa: B904 - the user's own, as it was
        if drawn.note and drawn.note not in self._noted:
            self._noted.add(drawn.note)
            self._warn(drawn.note, UserWarning)
        draw.answered(drawn)
        return batch, drawn.rows

"""Batches of lanes: one pass over a dataset without a count.

Draws come in the order of the plan (`lane_pass`); those behind a lane's end hold nothing and are passed over. Where a
global batch takes of several slots, a draw holds a lane's outputs one by one, for some batches, and the batches are
made here of what came of all the rank's slots. When the dataset raises in a lane, that is told once, and the lane has
ended: behind the exception nothing of it can be made.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Any

from headrace.errors import INTERRUPTIONS, PipelineError
from headrace.feed.client.policy import SessionStats, Skipped
from headrace.feed.client.session import Session
from headrace.feed.pipelines.fetch import Built, RowFailed, collated
from headrace.feed.pipelines.lane_datasets import one_rank_shown
from headrace.feed.pipelines.seeds import preserved_generators
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.lane_draw import LaneDraw
from headrace.feed.plan.lane_pass import LanePart, LanePass
from headrace.feed.plan.pass_progress import Progress
from headrace.feed.worker.lane_reader import LaneFailed, LaneReaders

Made = tuple[Any, int]


class _LaneBatches(abc.ABC):
    """What both ways of making batches of lanes share.

    Args:
        built: the pipeline, as far as batches are made here.
        draws: of the pass.
        progress: of the pass; kept here.
        stats: counters to add to.
    """

    size: int | None = None

    def __init__(self, built: Built, draws: LanePass, progress: Progress, stats: SessionStats) -> None:
        self._built, self._draws, self._progress, self._steps = built, draws, progress, draws.steps
        self._stats = stats
        self._number = 0  # of the next draw
        self._made = progress.step - draws.replay  # batches of the epoch that were made

    @abc.abstractmethod
    def _wait(self) -> bool:
        """Waits for the next draw. Returns False at the end of all lanes."""

    @abc.abstractmethod
    def _take(self) -> Any:
        """Returns what came of the draw. Raises what the dataset raised over it."""

    def fetch(self) -> Made | None:
        """Returns the next batch and its number of rows, None at the end.

        Raises:
            PipelineError: the lanes hold fewer batches than `steps_per_epoch`.
        """
        draws = self._draws
        while self._steps is None or self._made < self._steps:
            while draws.lacking() and self._wait():
                self._keep()
            ended = draws.ended()
            if ended and self._steps is not None:
                raise PipelineError(
                    f"this rank has {self._made} batches, and steps_per_epoch is {self._steps}",
                    hint="set steps_per_epoch to what every rank has, or fewer. With global_batch_size= a batch takes "
                    "of all slots of lanes, so the slot with the fewest outputs decides",
                )
            if ended == draws.slots or (ended and draws.drop_last):
                return None
            self._made += 1
            parts = draws.take(self._made)
            if draws.replay:  # another rank's state was loaded: these were consumed
                draws.replay -= 1
                continue
            self._progress.step = self._made
            for part in parts:
                self._list(part, self._made - 1)
            return self._batch(parts)
        return None

    def _keep(self) -> None:
        """Takes a draw. Raises what the dataset raised over it, if its lane had not failed before."""
        draw, number = self._draws.draws[self._number], self._number
        told = draw.cursor.failed
        try:
            outputs = self._take()
        except INTERRUPTIONS:
            raise
        except BaseException:
            draw.failed = True
            self._number += 1
            self._draws.keep(number, None)
            if told:
                return
            raise
        self._number += 1
        passed = self._draws.keep(number, outputs)
        if passed and draw.drawn is not None and not self._draws.replay:
            self._list(LanePart(draw, 0, 0, ()), self._made)

    def _list(self, part: LanePart, step: int) -> None:
        """Lists the rows that were left out before some outputs of a draw, and behind its last one."""
        draw, first, last, _ = part
        assert draw.drawn is not None, "it has come"
        for row, reason, output in draw.drawn.skipped:
            if first <= output - draw.first and (output - draw.first < last or last == draw.drawn.rows):
                self._stats.skipped.append(Skipped(self._draws.epoch, step, row, reason))

    def _batch(self, parts: list[LanePart]) -> Made:
        for draw, first, last, _ in parts:
            assert draw.drawn is not None, "it has come"
            self._stats.tokens += sum(draw.drawn.tokens[first:last])
            self._stats.padding += sum(draw.drawn.padding[first:last])
            self._stats.sources.update(draw.drawn.sources[first:last])
        rows = sum(part.last - part.first for part in parts)
        if self._draws.slots == 1:
            return parts[0].outputs, rows
        address = self._draws.address_of(parts[0].draw, parts[0].first)
        outputs = [output for part in parts for output in part.outputs]
        try:
            if self._built.default_collate:
                return collated(self._built, outputs, address), rows
            with preserved_generators():
                return collated(self._built, outputs, address), rows
        except RowFailed as failed:
            error = failed.__cause__
            assert error is not None
            raise error  # noqa: B904 - the user's own, as it was


class InlineLanes(_LaneBatches):
    """Batches of lanes that are made in this process.

    Args:
        built: the pipeline.
        readers: of the lanes.
        draws, progress, stats: as above.
        warn: called with what the user should know.
        shared: whether other ranks have lanes too.
    """

    def __init__(
        self,
        built: Built,
        readers: LaneReaders,
        draws: LanePass,
        progress: Progress,
        warn: Callable[[str, type[Warning]], None],
        stats: SessionStats,
        *,
        shared: bool,
    ) -> None:
        super().__init__(built, draws, progress, stats)
        self._readers, self._warn = readers, warn
        self._shown = one_rank_shown if shared else contextlib.nullcontext
        self._noted: set[str] = set()
        self._plan: BatchPlan | None = None

    def _wait(self) -> bool:
        self._plan = next(self._draws, None)
        return self._plan is not None

    def _take(self) -> Any:
        plan = self._plan
        assert plan is not None, "there is one"
        assert plan.draw is not None, "of a lane"
        with preserved_generators(), self._shown():
            return self._make(plan, plan.draw)

    def _make(self, plan: BatchPlan, draw: LaneDraw) -> Any:
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
        return batch

    def ready(self) -> bool:
        """Returns False: without workers a batch is made when it is asked for, never before."""
        return False

    def queued(self) -> int:
        """None is made before it is asked for."""
        return 0

    def end(self, *, complete: bool) -> None:
        """Nothing is held."""


class ServedLanes(_LaneBatches):
    """Batches of lanes that a session's workers make.

    Args:
        session: ours until the end of the pass; it has begun with the draws.
        built, draws, progress: as above.
        timeout: seconds to wait for a batch; None for the session's own limit.
        give_back: called with the session at the end, and whether the pass was completed.
    """

    def __init__(
        self,
        session: Session,
        built: Built,
        draws: LanePass,
        progress: Progress,
        timeout: float | None,
        give_back: Callable[[Session, bool], None],
    ) -> None:
        super().__init__(built, draws, progress, session.stats)
        self._session: Session | None = session
        self._timeout, self._give_back = timeout, give_back
        self._epoch = progress.epoch

    def _wait(self) -> bool:
        session = self._session
        return session is not None and session.wait_for(self._epoch, self._number, self._timeout)

    def _take(self) -> Any:
        session = self._session
        assert session is not None, "it was waited for"
        try:
            taken = session.take(self._epoch, self._number)
        except KeyboardInterrupt:
            session.close()  # in the middle of a hand-over: what it holds is not known any more
            raise
        return taken[0] if taken is not None else None

    def ready(self) -> bool:
        """Asks the session. (Behind a draw that is empty there is a wait all the same.)"""
        session, lacking = self._session, self._draws.lacking()
        if session is None or not lacking:
            return True
        return session.ready(self._epoch, self._number) and (lacking == 1 or session.count_ready() >= lacking)

    def queued(self) -> int:
        """Asks the session; of several slots, how many batches could be made of what is there."""
        session, draws = self._session, self._draws
        return 0 if session is None or session.closed else draws.held() + session.count_ready() // draws.slots

    def end(self, *, complete: bool) -> None:
        """Gives the session back."""
        session, self._session = self._session, None
        if session is not None:
            self._give_back(session, complete)

"""Batches of lanes: one pass over a dataset without a count.

Draws come in the order of the plan (`lane_draws`); those behind a lane's end hold nothing and are passed over. When the
dataset raises in a lane, that is told once, and the lane has ended: behind the exception nothing of it can be made.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from headrace.errors import PipelineError
from headrace.feed.client.policy import SessionStats
from headrace.feed.client.session import Session
from headrace.feed.pipelines.fetch import Built, RowFailed, collated
from headrace.feed.pipelines.seeds import preserved_generators
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.lane_draws import LaneDraw, LanePass
from headrace.feed.plan.pass_progress import Progress
from headrace.feed.worker.lane_reader import LaneFailed, LaneReaders

Made = tuple[Any, int]


class _LaneBatches(abc.ABC):
    """What both ways of making batches of lanes share.

    Args:
        draws: of the pass.
        progress: of the pass; kept here.
        stats: counters to add to.
    """

    def __init__(self, draws: LanePass, progress: Progress, stats: SessionStats) -> None:
        self._draws, self._progress, self._steps = draws, progress, draws.steps
        self._stats = stats
        self._number = 0  # of the next draw
        self._made = progress.step - draws.replay  # batches of the epoch that were made

    @abc.abstractmethod
    def _wait(self) -> bool:
        """Waits for the next draw. Returns False at the end of all lanes."""

    @abc.abstractmethod
    def _take(self) -> Made:
        """Returns what came of the draw: (None, 0) for an empty one. Raises what the dataset raised over it."""

    def fetch(self) -> Made | None:
        """Returns the next batch and its number of rows, None at the end.

        Raises:
            PipelineError: the lanes hold fewer batches than `steps_per_epoch`.
        """
        while self._steps is None or self._made < self._steps:
            if not self._wait():
                if self._steps is not None:
                    raise PipelineError(
                        f"this rank has {self._made} batches, and steps_per_epoch is {self._steps}",
                        hint="set steps_per_epoch to what every rank has, or fewer",
                    )
                return None
            try:
                made = self._take()
            except Exception:
                if self._failed():
                    continue
                raise
            self._made += made[1] > 0
            drawn = self._draws.draws[self._number].drawn
            self._draws.handed(self._number, self._made)
            self._number += 1
            if not made[1]:
                continue
            if self._draws.replay:  # another rank's state was loaded: these were consumed
                self._draws.replay -= 1
                continue
            self._progress.step = self._made
            if drawn is not None:
                self._stats.tokens += drawn.tokens
                self._stats.padding += drawn.padding
            return made
        return None

    def _failed(self) -> bool:
        """Notes that a draw failed. Returns whether it is to be passed over: its lane had failed before."""
        draw = self._draws.draws[self._number]
        told = draw.cursor.failed
        draw.failed = True
        self._draws.handed(self._number, self._made)
        self._number += 1
        return told


class InlineLanes(_LaneBatches):
    """Batches of lanes that are made in this process.

    Args:
        built: the pipeline.
        readers: of the lanes.
        draws, progress, stats: as above.
        warn: called with what the user should know.
    """

    def __init__(
        self,
        built: Built,
        readers: LaneReaders,
        draws: LanePass,
        progress: Progress,
        warn: Callable[[str, type[Warning]], None],
        stats: SessionStats,
    ) -> None:
        super().__init__(draws, progress, stats)
        self._built, self._readers, self._warn = built, readers, warn
        self._noted: set[str] = set()
        self._plan: BatchPlan | None = None

    def _wait(self) -> bool:
        self._plan = next(self._draws, None)
        return self._plan is not None

    def _take(self) -> Made:
        plan = self._plan
        assert plan is not None, "there is one"
        assert plan.draw is not None, "of a lane"
        with preserved_generators():
            return self._make(plan, plan.draw)

    def _make(self, plan: BatchPlan, draw: LaneDraw) -> Made:
        behind = 1
        try:
            while behind:
                outputs, drawn = self._readers.draw(plan.epoch, plan.seed, draw.request())
                behind = drawn.behind
            batch = collated(self._built, outputs, (plan.seed, plan.epoch, plan.position)) if outputs else None
        except (LaneFailed, RowFailed) as failed:
            error = failed.__cause__
            assert isinstance(error, Exception)
            raise error  # noqa: B904 - the user's own, as it was
        if drawn.note and drawn.note not in self._noted:
            self._noted.add(drawn.note)
            self._warn(drawn.note, UserWarning)
        draw.answered(drawn)
        return batch, len(outputs)

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
        draws, progress: as above.
        timeout: seconds to wait for a batch; None for the session's own limit.
        give_back: called with the session at the end, and whether the pass was completed.
    """

    def __init__(
        self,
        session: Session,
        draws: LanePass,
        progress: Progress,
        timeout: float | None,
        give_back: Callable[[Session, bool], None],
    ) -> None:
        super().__init__(draws, progress, session.stats)
        self._session: Session | None = session
        self._timeout, self._give_back = timeout, give_back
        self._epoch = progress.epoch

    def _wait(self) -> bool:
        session = self._session
        return session is not None and session.wait_for(self._epoch, self._number, self._timeout)

    def _take(self) -> Made:
        session = self._session
        assert session is not None, "it was waited for"
        try:
            taken = session.take(self._epoch, self._number)
        except KeyboardInterrupt:
            session.close()  # in the middle of a hand-over: what it holds is not known any more
            raise
        drawn = self._draws.draws[self._number].drawn
        return (None, 0) if taken is None or drawn is None else (taken[0], drawn.rows)

    def ready(self) -> bool:
        """Asks the session. (Behind a draw that is empty there is a wait all the same.)"""
        return self._session is None or self._session.ready(self._epoch, self._number)

    def queued(self) -> int:
        """Asks the session."""
        session = self._session
        return 0 if session is None or session.closed else session.count_ready()

    def end(self, *, complete: bool) -> None:
        """Gives the session back."""
        session, self._session = self._session, None
        if session is not None:
            self._give_back(session, complete)

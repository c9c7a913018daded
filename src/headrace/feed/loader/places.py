"""Where a loader is in its data: the methods that set and tell the epoch and the position."""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.errors import PositionError
from headrace.feed.identifiers import require_count, whole
from headrace.feed.loader.open_sessions import OpenSessions
from headrace.feed.plan.planner import Planner
from headrace.feed.plan.torch_samplers import source_of
from headrace.feed.wire import messages


class Places(abc.ABC):
    """See the module.

    Attributes:
        _sampler, _batch_sampler: torch's samplers, both None where headrace's own plan decides the order.
        _planner: of the loader.
        _sessions: those that are open.
        _opening: how the next one opens the pipeline.
    """

    _shards = False  # whether the ranks share the data without being told; a framework's adapter says so
    _sampler: Iterable[Any] | None
    _batch_sampler: Iterable[list[Any]] | None
    _planner: Planner
    _sessions: OpenSessions
    _opening: messages.Open

    @abc.abstractmethod
    def _make_opening(self) -> messages.Open: ...

    @abc.abstractmethod
    def _settle(self) -> None: ...

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch; without it epochs count from 0.

        A position that was loaded in that epoch stands; in another epoch it is left, with a warning.

        Raises:
            TypeError, ValueError: not a whole number, negative, or not below 2**63.
        """
        epoch = whole("epoch", epoch)
        require_count("epoch", epoch)
        self._planner.bookmark.set_epoch(epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Returns the position in the latest pass, or the beginning of the next: numbers and strings, under 1 KB.

        Batches that `next()` has returned are consumed; those on their way are not. A torch sampler with a state or a
        generator of its own adds that.

        Args:
            batches: how many of the latest pass count as consumed, where something reads ahead of the training; by
                default all that `next()` has returned. With headrace's own order only.

        Raises:
            PositionError: `next()` has not returned as many, or the order is a sampler's.
            TypeError: not a whole number.
        """
        if batches is not None:
            batches = whole("batches", batches)
        return self._planner.state(source_of(self._sampler, self._batch_sampler), batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begins the next pass where a state was taken, also with another number of ranks, workers or rows a batch.

        Args:
            state: what `state_dict()` returned; empty for the beginning.

        Raises:
            PositionError: it does not fit this loader; names the field and both values. Or it is None, as a checkpoint
                gives that holds no state: it would begin at the beginning unnoticed. Or Lightning loads it, without the
                adapter, behind an epoch's last step.
        """
        if state is None:
            raise PositionError(
                "load_state_dict was given None",
                hint="the checkpoint holds no state of this loader; to begin at the beginning on purpose, load {}",
            )
        if not self._shards:
            _require_counted()
        self._planner.load(state, source_of(self._sampler, self._batch_sampler))
        self._sessions.position_set()
        if not self._sessions:  # else the ranks, which load one after the other, would disagree for a while
            self._opening = self._make_opening()


def _require_counted() -> None:
    """Raises PositionError where Lightning goes on behind an epoch's last batch and does not count that epoch.

    Lightning tells a loader nothing, so its loop is looked up above. Behind the validation at an epoch's end, or at the
    end of an epoch without `max_steps`, it counts.
    """
    frame = sys._getframe(2)
    while frame.f_code.co_name != "_load_combined_loader_states":
        if frame.f_back is None:
            return
        frame = frame.f_back
    loop = frame.f_locals["self"]
    batches, epochs = loop.epoch_loop.batch_progress, loop.epoch_progress.total
    behind = batches.is_last_batch and batches.total.completed < batches.total.processed
    if behind or (loop.max_steps != -1 and epochs.completed < epochs.processed):
        raise PositionError(
            f"Lightning's checkpoint stands behind the last batch of epoch {epochs.ready - 1}, and Lightning does not "
            "count that epoch: a plain DataLoader would train on nothing, or on rows twice",
            hint="use headrace.adapters.lightning.DataLoader, which counts it: with this loader's seed= it goes on "
            "from this checkpoint. Without a seed, go on from one of another step",
        )

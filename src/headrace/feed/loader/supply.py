"""Where the batches of a pass come from: made in this process, or by a session's workers.

What is asked for, and what becomes of it, is the business of the pass: counted data give one batch a request, lanes put
batches together of what several gave (`LaneBatches`). Whether a request is met here or elsewhere is the supply's.
"""

from __future__ import annotations

import abc
import contextlib
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headrace.errors import INTERRUPTIONS, PipelineError
from headrace.feed.batch.pytree import bytes_of
from headrace.feed.client.policy import SessionStats, Skipped
from headrace.feed.client.session import Session, check_owner
from headrace.feed.identifiers import MAX_JOB, PipelineNumber
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed.pipelines import factory
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.fetch import Built, RowFailed, SampleAddresses, collated, make_whole, stack_arrays
from headrace.feed.pipelines.lane_datasets import one_rank_shown
from headrace.feed.pipelines.seeds import PreservedGenerators
from headrace.feed.plan.bookmark import Bookmark, Place, Progress, Stage
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.lane_pass import LaneDraw, LanePart, LanePass
from headrace.feed.wire import messages
from headrace.feed.wire.remote_errors import in_short, remote_error, warn_user
from headrace.feed.worker.lane_reader import LaneFailed, LaneReaders

JOB_VARIABLE = "HEADRACE_FEED_JOB"
PIPELINE = PipelineNumber(1)  # a session has one


def opening_by_name(
    of: Built, init: Callable[[int], None] | None, name: str, plan: str, lanes: int, ranks: int
) -> messages.Open:
    """Returns how feed servers open a pipeline.

    Args:
        of: the pipeline, which is not built here, and the user's `collate_fn`.
        init: `worker_init_fn`.
        name: of the loader.
        plan: plan fingerprint.
        lanes, ranks: see `messages.Open`.

    Raises:
        PipelineError: a function has no importable name.
    """
    named: Pipeline[Any] = of.dataset
    stacked = of.default_collate and of.collate is not stack_arrays
    collate = "" if stacked else factory.function_name(of.collate, "collate_fn")
    begin = factory.function_name(init, "worker_init_fn") if init else ""
    return messages.Open(
        PIPELINE, named.factory, named.arguments, collate, begin, of.batched, name, plan,
        lanes=lanes, job=job_of(plan), opener=secrets.token_hex(8), ranks=ranks,
    )  # fmt: skip


def job_of(plan: str) -> str:
    """Returns the name of this job among those that share a feed server; all its ranks must find the same.

    It is HEADRACE_FEED_JOB, or else where the ranks of torchrun meet; a process without ranks is a job of its own.

    Args:
        plan: plan fingerprint, empty where nothing is divided among ranks.
    """
    named = os.environ.get(JOB_VARIABLE, "")
    if named:
        return named[:MAX_JOB]
    meeting = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    given = not os.environ.get("RANK") and meeting[1] == os.environ.get("SM_MASTER_PORT")  # to all, as on SageMaker
    if all(meeting) and not given:
        return ":".join(meeting)[:MAX_JOB]
    return "" if plan else f"{socket.gethostname()[:64]}:{os.getpid()}"


class OpenSessions:
    """One session for each pass that goes on, and the one that waits for the next pass.

    It keeps no reference to the loader, so that a loader that nobody uses closes them."""

    def __init__(self) -> None:
        self._opened: list[Session] = []
        self._idle: Session | None = None
        self._goes_on_with: int | None = None

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._opened))

    def __bool__(self) -> bool:
        return bool(self._opened)

    def waiting(self, make: Callable[[], Session]) -> Session:
        """Returns the session that waits for the next pass; makes one if there is none."""
        if self._idle is not None and self._idle.inherited:
            self._idle.close()  # nothing of the other process's
        if self._idle is None or self._idle.closed:
            self._opened[:] = [session for session in self._opened if not session.closed]
            self._idle, self._goes_on_with = make(), None
            self._opened.append(self._idle)
        return self._idle

    def take(self, make: Callable[[], Session]) -> tuple[Session, int | None]:
        """Returns the session of a pass, which is the pass's until it is given back, and the epoch that it has begun.

        A session begins the epoch after the latest one by itself, where it can; else that number is None.
        """
        session, begun = self.waiting(make), self._goes_on_with
        self._idle = self._goes_on_with = None
        return session, begun

    def give_back(self, session: Session, goes_on_with: int | None, *, keep: bool) -> None:
        """Keeps the session of a pass for the next one, or ends it.

        Args:
            session: the session.
            goes_on_with: the epoch that it has begun by itself, if it has.
            keep: whether workers are kept over epochs.
        """
        if keep and self._idle is None and not session.closed:
            self._idle, self._goes_on_with = session, goes_on_with
            return
        session.close()
        if session in self._opened:
            self._opened.remove(session)

    def position_set(self) -> None:
        """The next pass begins elsewhere: what a session has begun by itself is not wanted."""
        self._goes_on_with = None

    def close(self) -> None:
        """Closes all."""
        while self._opened:
            self._opened.pop().close()
        self._idle = self._goes_on_with = None


Made = tuple[Any, int]  # a batch, or what came of a draw, and its rows


class Pass(Protocol):
    """What a pass needs next, how that is made in this process, and the batches that it makes of what came.

    Attributes:
        epoch: its number.
        slots: requests that a batch is made of.
        gives_what_came: whether its batches are what came, so that their size is known.
    """

    epoch: int
    slots: int
    gives_what_came: bool

    def plans_for(self, batches: int) -> int:
        """Returns of how many requests some batches are made."""

    def needed(self) -> int | None:
        """Returns the number of the first request that must come before the next batch; None if none must."""

    def make(self, plan: BatchPlan) -> Made | None:
        """Makes in this process what is asked for; None if all rows were left out. Raises what the dataset raised."""

    def lacking(self) -> int:
        """Returns how many requests must come before the next batch, at least."""

    def held(self) -> int:
        """Returns how many batches can be made of what came."""

    def came(self, number: int, made: Made | None) -> None:
        """Takes what came of a request; None if all rows were left out."""

    def failed(self, number: int) -> bool:
        """The dataset raised over a request. Returns whether the user is told: not of the same a second time."""

    def batch(self) -> Made | None:
        """Returns the next batch of what came, None at the end."""


class CountedPass:
    """A pass whose batches are what is asked for.

    Args:
        built: the pipeline, where batches are made here.
        progress: of the pass; kept here.
        end_step: number of the step after the epoch's last; None where the plan ends with it.
        skipped: where samples that raise are listed, which are then left out of their batches; None to raise.
    """

    slots, gives_what_came = 1, True

    def __init__(self, built: Built, progress: Progress, end_step: int | None, skipped: list[Skipped] | None) -> None:
        self.epoch = progress.epoch
        self._built, self._progress, self._end_step, self._skipped = built, progress, end_step, skipped
        self._made: Made | None = None

    @staticmethod
    def plans_for(batches: int) -> int:
        """See `Pass`. (It holds no pass: a session keeps it.)"""
        return batches

    def needed(self) -> int | None:
        """See `Pass`: as long as no batch is there, which was not left out as a whole."""
        step = self._progress.step
        return None if self._made is not None or step == self._end_step else step

    def make(self, plan: BatchPlan) -> Made | None:
        """See `Pass`."""
        rows: Sequence[int] = range(plan.rows)
        left_out: dict[int, str] = {}
        made: Made | BaseException | None = None
        while made is None and len(left_out) < max(1, plan.rows):
            keys = [plan.keys[row] for row in rows] if left_out else plan.keys
            addresses = SampleAddresses(plan.epoch, plan.seed, plan.position, rows, keys)
            try:
                made = make_whole(self._built, addresses), len(rows)
            except RowFailed as failed:
                error, row = failed.__cause__, failed.row
                assert error is not None
                if self._skipped is None or not rows:
                    made = error
                else:
                    left_out |= dict.fromkeys([row] if row >= 0 else rows, in_short(remote_error(error)))
                    rows = [row for row in rows if row not in left_out]
        if self._skipped is not None and left_out:
            self._skipped += [
                Skipped(plan.epoch, plan.step, plan.keys[row], reason) for row, reason in sorted(left_out.items())
            ]
        if isinstance(made, BaseException):
            raise made
        return made

    def lacking(self) -> int:
        """See `Pass`."""
        return 1

    def held(self) -> int:
        """See `Pass`: a batch is given as soon as it came."""
        return 0

    def came(self, number: int, made: Made | None) -> None:
        """See `Pass`."""
        self._progress.took(number)
        self._made = made

    def failed(self, number: int) -> bool:
        """See `Pass`: the pass goes on behind that batch."""
        self._progress.took(number)
        return True

    def batch(self) -> Made | None:
        """See `Pass`."""
        made, self._made = self._made, None
        return made


class Supply(abc.ABC):
    """Where the batches of one pass come from.

    Attributes:
        size: bytes of the tensors and arrays of the batch that was fetched last; None if nobody has counted them.
    """

    size: int | None = None

    @abc.abstractmethod
    def fetch(self) -> Made | None:
        """Returns the next batch and its number of rows, None at the end."""

    def ready(self) -> bool:
        """Says whether `fetch` would return or raise without a wait."""
        return False

    def queued(self) -> int:
        """Returns how many batches are there."""
        return 0

    def end(self, *, complete: bool) -> None:  # noqa: B027 - where nothing is held
        """The pass is over; `complete` if it was not broken off. May be called twice."""


class _PassSupply(Supply):
    def __init__(self, of: Pass) -> None:
        self._pass = of

    @abc.abstractmethod
    def _wait(self, needed: int) -> int | None:
        """Waits for a request. Returns the number of the one that is there, None beyond the plan's end."""

    @abc.abstractmethod
    def _take(self, number: int) -> Made | None:
        """Returns what came of a request that was waited for. Raises what the dataset raised over it."""

    def fetch(self) -> Made | None:
        """See `Supply`."""
        while (needed := self._pass.needed()) is not None:
            number = self._wait(needed)
            if number is None:
                break
            try:
                made = self._take(number)
            except INTERRUPTIONS:
                raise
            except BaseException:
                if self._pass.failed(number):
                    raise
            else:
                self._pass.came(number, made)
                del made
        return self._pass.batch()


class Inline(_PassSupply):
    """Batches that are made in this process, when they are asked for.

    Args:
        of: the pass.
        plans: what is asked for; may go on with later epochs.
    """

    def __init__(self, of: Pass, plans: Iterator[BatchPlan]) -> None:
        super().__init__(of)
        self._plans = plans
        self._plan: BatchPlan | None = None

    def _wait(self, needed: int) -> int | None:
        plan = self._plan = next(self._plans, None)
        return None if plan is None or plan.epoch != self._pass.epoch else plan.step

    def _take(self, number: int) -> Made | None:
        assert self._plan is not None, "it was waited for"
        try:
            with PreservedGenerators():
                return self._pass.make(self._plan)
        except StopIteration as error:  # it would end the user's loop as if the epoch were over
            raise RuntimeError("the dataset raised StopIteration") from error


class Served(_PassSupply):
    """Batches that a session's workers make.

    Args:
        of: the pass.
        session: ours until the end of the pass; it has begun with the plans.
        window: batches from the first that is still to come, of which the first that is there is taken.
        timeout: seconds to wait for a batch; None for the session's own limit.
        give_back: called with the session at the end, and whether the pass was completed.
    """

    def __init__(
        self,
        of: Pass,
        session: Session,
        window: int,
        timeout: float | None,
        give_back: Callable[[Session, bool], None],
    ) -> None:
        super().__init__(of)
        self._session: Session | None = session
        self._window, self._timeout, self._give_back = window, timeout, give_back

    def _wait(self, needed: int) -> int | None:
        session, epoch = self._session, self._pass.epoch
        if session is None or not session.wait_for(epoch, needed, self._timeout, self._window):
            return None
        return session.first_ready(epoch, needed, self._window)

    def _take(self, number: int) -> Made | None:
        session = self._session
        assert session is not None, "it was waited for"
        try:
            made = session.take(self._pass.epoch, number)
        except KeyboardInterrupt:
            session.close()  # in the middle of a hand-over: what it holds is not known any more
            raise
        if self._pass.gives_what_came:
            self.size = session.taken_bytes
        return made

    def ready(self) -> bool:
        """Asks the session. (Behind what came empty there is a wait all the same.)"""
        session, needed = self._session, self._pass.needed()
        if session is None or needed is None:
            return True
        lacking = self._pass.lacking()
        ready = session.ready(self._pass.epoch, needed, self._window)
        return ready and (lacking == 1 or session.count_ready() >= lacking)

    def queued(self) -> int:
        """Asks the session how many batches could be made of what is there."""
        session = self._session
        if session is None or session.closed:
            return 0
        return self._pass.held() + session.count_ready() // self._pass.slots

    def end(self, *, complete: bool) -> None:
        """Gives the session back."""
        session, self._session = self._session, None
        if session is not None:
            self._give_back(session, complete)


class LaneBatches:
    """A pass over lanes, a dataset without a count: see `Pass`.

    Draws come in the order of the plan (`lane_pass`); those behind a lane's end hold nothing and are passed over. Where
    a global batch takes of several slots, a draw holds a lane's outputs one by one, for some batches, and the batches
    are made here of what came of all the rank's slots. When the dataset raises in a lane, that is told once, and the
    lane has ended: behind the exception nothing of it can be made.

    Args:
        built: the pipeline, as far as batches are made here.
        draws: of the pass.
        progress: of the pass; kept here.
        stats: counters to add to.
        readers: of the lanes, where draws are made here.
        shared: whether other ranks have lanes too.
    """

    gives_what_came = False

    def __init__(
        self,
        built: Built,
        draws: LanePass,
        progress: Progress,
        stats: SessionStats,
        readers: LaneReaders,
        *,
        shared: bool = False,
    ) -> None:
        self._readers, self._noted = readers, set[str]()
        self._shown = one_rank_shown if shared else contextlib.nullcontext
        self._built, self._draws, self._progress = built, draws, progress
        self._stats = stats
        self.epoch, self.slots = draws.epoch, draws.slots
        self.lacking, self.held, self.plans_for = draws.lacking, draws.held, draws.plans_for

    def make(self, plan: BatchPlan) -> Made:
        """See `Pass`: the outputs of a draw, or the batch that they are."""
        draw = plan.draw
        assert draw is not None, "of a lane"
        with self._shown():
            return self._make(plan, draw)

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
            warn_user(drawn.note, UserWarning)
        draw.answered(drawn)
        return batch, drawn.rows

    def needed(self) -> int | None:
        """See `Pass`. What another rank's state had consumed is made and passed over."""
        while self._draws.steps is None or self._draws.step < self._draws.steps:
            if self._draws.lacking():
                return self._draws.awaited
            if not self._draws.replay or self._parts() is None:
                break
            self._draws.replay -= 1
        return None

    def came(self, number: int, made: Made | None) -> None:
        """See `Pass`."""
        draw = self._draws.draws[number]
        passed = self._draws.keep(number, made[0] if made is not None else None)
        if passed and draw.drawn is not None and not self._draws.replay:
            self._list(LanePart(draw, 0, 0, ()), self._draws.step)

    def failed(self, number: int) -> bool:
        """See `Pass`: the lane has ended."""
        draw = self._draws.draws[number]
        told = draw.cursor.failed
        draw.failed = True
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
        draws, steps = self._draws, self._draws.steps
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


class Iteration(Iterator[Any]):
    """One pass over a loader: what `iter(loader)` returns.

    As with torch's iterators, an error of the user's dataset ends its batch, not the pass: `next()` may be called again
    and gives the batch that follows. Threads may share one: each batch goes to one of them.

    Args:
        begin: plans the pass. Returns where its batches come from, and its progress.
        bookmark: of the loader; told how far the pass is.
        meter: measures the pass.
        prepare: applied to every batch.
        length: number of batches, if it can be known.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Supply, Progress]],
        bookmark: Bookmark,
        meter: StepMeter,
        prepare: Callable[[Any], Any] | None,
        length: Callable[[], int],
    ) -> None:
        self._begin: Callable[[], tuple[Supply, Progress]] | None = begin
        self._batches, self._progress = begin()
        self._bookmark = bookmark
        self._meter = meter
        self._prepare = prepare
        self._length = length
        self._ended = False
        self._peeked: tuple[tuple[Any, int] | None, Place] | None = None
        self._owner = os.getpid()
        self._turn = threading.RLock()  # a signal's handler, in the same thread, may end a pass
        meter.begin()

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        check_owner(self._owner)
        with self._turn:
            if self._ended:
                raise StopIteration
            if self._begin is not None:
                self._settle(self._begin)
            self._meter.waiting()
            try:
                if self._meter.counts_queue:
                    self._meter.queued(self._batches.queued())
                item = self._fetch()
            except INTERRUPTIONS:
                self._end(complete=False)
                raise  # others are the user's own: the pass goes on; one of the feed has closed the session and says so
            if item is None:
                self._end(complete=True)
                self._meter.ended()
                raise StopIteration
            batch = item[0] if self._prepare is None else self._prepare(item[0])
            size = self._batches.size
            self._meter.got(item[1], bytes_of(batch) if size is None else size, self._progress.epoch)
            return batch

    def peek(self) -> Any:
        """Returns the first batch, None if there is none. It is not taken: the pass has not begun by that."""
        before = self._progress.place
        item = self._batches.fetch()
        self._peeked = item, self._progress.place
        self._progress.move(before)
        return None if item is None else item[0]

    def _fetch(self) -> tuple[Any, int] | None:
        if self._peeked is None:
            return self._batches.fetch()
        (item, place), self._peeked = self._peeked, None
        self._progress.move(place)
        return item

    def _settle(self, begin: Callable[[], tuple[Supply, Progress]]) -> None:
        """The first batch is asked for: this settles which epoch it is."""
        if self._progress.stage is Stage.LEFT:
            self._batches.end(complete=False)
            self._batches, self._progress = begin()
            self._peeked = None
        self._begin, self._progress.stage = None, Stage.BEGUN

    def _end(self, *, complete: bool) -> None:
        self._ended, self._peeked = True, None
        if complete:
            self._bookmark.complete(self._progress)
        else:
            self._bookmark.broken_off(self._progress)
        self._batches.end(complete=complete)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not getattr(self, "_ended", True) and not is_finalizing():  # then the sessions were closed at exit
            self._end(complete=False)

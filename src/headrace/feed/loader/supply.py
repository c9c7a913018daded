"""Where the batches of a pass come from: made in this process, or by a session's workers.

What is asked for, and what becomes of it, is the business of the pass: counted data give one batch a request, lanes put
batches together of what several gave (`lane_batches`). Whether a request is met here or elsewhere is the supply's.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headrace.errors import INTERRUPTIONS
from headrace.feed.client.policy import Skipped
from headrace.feed.client.session import Session
from headrace.feed.pipelines.fetch import Built, RowFailed, SampleAddresses, make_whole
from headrace.feed.pipelines.seeds import PreservedGenerators
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.pass_progress import Progress
from headrace.feed.wire.remote_errors import in_short, remote_error

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

    @abc.abstractmethod
    def ready(self) -> bool:
        """Says whether `fetch` would return or raise without a wait."""

    @abc.abstractmethod
    def queued(self) -> int:
        """Returns how many batches are there."""

    @abc.abstractmethod
    def end(self, *, complete: bool) -> None:
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

    def ready(self) -> bool:
        """Returns False: a batch is never made before it is asked for."""
        return False

    def queued(self) -> int:
        """Returns 0, likewise."""
        return 0

    def end(self, *, complete: bool) -> None:
        """Nothing is held."""


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

"""The purity check: a share of slices is made twice, on different executors, and their digests are compared.

A slice may be requested again from any worker only because its content depends on its address alone; this is what the
check verifies. A pure state machine: `exchange` adds what was made, and gets what to request a second time.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import ShardError
from headrace.feed.client.work_units import Request, Slice
from headrace.feed.client.worker_pool import Worker
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.wire import messages
from headrace.feed.wire.remote_errors import in_short, kind_of
from headrace.feed.worker.slices import keys_of

FIRST = 8  # slices that are always checked
CHEAP_SECONDS = 0.5  # that checks may take together, whatever else was made
CHECK_SHARE = 0.05  # of what is made, besides the share that is asked for
HEADROOM = 1.25  # as much of that share may be used: slices do not take equally long
PATIENCE = 4  # requests after which a waiting check goes before other work, so that a short pass is checked too


@dataclass(frozen=True)
class Check:
    """A slice that was made once.

    Attributes:
        request: as it was requested.
        done: as it was answered.
        at: how many requests there had been.
        numerics: of the maker; only equal ones are compared.
    """

    request: Request
    done: messages.Done
    at: int
    numerics: bytes

    @property
    def seconds(self) -> float:
        """How long it will take to make it again; what lies before it in its lane included."""
        draw = self.request.slice.draw
        return self.done.seconds * (1 + (draw.replayed / draw.count if draw is not None else 0))


@dataclass(frozen=True)
class Difference:
    """Two workers made different bytes of the same address, or one of them raised.

    Attributes:
        epoch, step, keys: the address.
        raised: by one of them.
    """

    epoch: int
    step: int
    keys: tuple[object, ...]
    raised: str = ""

    def warning(self) -> str:
        """Returns what the user is told."""
        if self.raised:
            return f"one worker made {self}, and another one raised {self.raised}: a retry may change the data"
        return (
            f"two workers made different data of {self}: the dataset depends on more than the sample's "
            "place in the plan, so a retry may change it; loader.check() says which fields differ"
        )

    def __str__(self) -> str:
        what = f"index {self.keys[0]!r}" if len(self.keys) == 1 else f"a batch of indices {list(self.keys[:8])!r}"
        return f"{what} (epoch {self.epoch}, step {self.step})"


class Verifier:
    """See the module.

    Args:
        share: of the slices after the first ones; 0 checks none at all, 1 all.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._seen = 0
        self._made = self._spent = 0.0  # seconds
        self._waiting: collections.deque[Check] = collections.deque()
        self.compared = 0

    def wants(self, epoch: int, step: int, first: int) -> bool:
        """Whether the slice at this address must be checked. Counts the slices."""
        if not self._share:
            return False
        self._seen += 1
        if self._seen <= FIRST:
            return True
        drawn = hashlib.blake2b(f"{epoch}/{step}/{first}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "little") < self._share * 2**64

    def made(self, seconds: float) -> None:
        """A slice was made. Checks of slices that take long wait until they are a small part of that."""
        self._made += seconds

    def unwanted(self) -> None:
        """A slice that was to be checked is requested in another way: it is not counted."""
        self._seen -= 1

    def add(self, check: Check) -> None:
        """A slice that is to be checked was made, or the worker that should make it again is gone."""
        self._waiting.append(check)

    def next(
        self,
        makers: Callable[[Worker, Slice], Mapping[WorkerNumber, Worker]],
        requests: int,
    ) -> tuple[WorkerNumber, Check] | None:
        """Returns the next check and the worker for it, None when there is no check or no worker for it now.

        Args:
            makers: returns who can be asked to make a slice of a worker again.
            requests: how many there have been.
        """
        allowed = CHEAP_SECONDS + (CHECK_SHARE + HEADROOM * self._share) * self._made - self._spent
        for check in self._waiting:
            if check.seconds > allowed:
                continue
            maker = check.request.worker
            others = [
                load for load in makers(maker, check.request.slice).values()
                if (load.executors > 1 or load is not maker) and load.numerics == check.numerics
                and (load.has_room or requests - check.at > PATIENCE)
            ]  # fmt: skip
            if others:
                best = min(others, key=lambda load: (load is maker, len(load.outstanding)))
                self._waiting.remove(check)
                self._spent += check.seconds
                return best.number, check
        return None

    def compare(self, worker: Worker, check: Check, done: messages.Done) -> Difference | None:
        """Compares what was made a second time, by `worker`. Returns the first difference."""
        if done.executor == check.done.executor and worker is check.request.worker:
            return None  # the host had no other executor to give it to
        self.compared += 1
        if len(done.failures) != len(check.done.failures):
            return _raised(check, done)
        return None if done.digests == check.done.digests else _locate(check, done)

    def clear(self) -> None:
        """Forgets what waits."""
        self._waiting.clear()


def _raised(check: Check, done: messages.Done) -> Difference | None:
    """Finds what only one of two answers failed at. A shard that was changed meanwhile says nothing of the dataset."""
    one, other = sorted((check.done.failures, done.failures), key=len)
    known = {(failure.batch, failure.row) for failure in one}
    failure = next(each for each in other if (each.batch, each.row) not in known)
    if failure.error.kind == kind_of(ShardError):
        return None
    batch = check.request.message.batches[failure.batch]
    rows = (row for row in range(batch.first, batch.last) if row not in batch.left_out)
    keys = tuple(key for row, key in zip(rows, keys_of(batch), strict=False) if failure.row in (row, -1))
    return Difference(check.request.message.epoch, batch.step, keys, in_short(failure.error))


def _locate(check: Check, done: messages.Done) -> Difference:
    """Finds the first row, or batch that was made whole, where two answers differ."""
    made = check.request.message
    first, second = check.done.digests, done.digests
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    batches = [(batch.step, tuple(keys_of(batch))) for batch in made.batches]
    places = [(step, (key,)) for step, keys in batches for key in keys] if check.done.layout else batches
    step, keys = places[min(at, len(places) - 1)]
    return Difference(made.epoch, step, keys)

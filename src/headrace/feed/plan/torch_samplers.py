"""Passes over torch's samplers: their batches, and what it takes to come to a place in them again.

How a sampler is brought back to a position, the first that applies:

* it, or its iterator, has `state_dict` and `load_state_dict` (as torchdata's have): they are used. A sampler runs ahead
  of the trainer, so its state is noted with every batch (or every n-th, then the rest is drawn again);
* a `RandomSampler` without a generator draws a seed for every pass: that seed is kept;
* another of torch's random samplers has a generator: the state that it had at the pass's beginning is kept;
* else it is taken to give the same order again, as a sequential or distributed sampler does.

But for the first, what was consumed is then drawn again and left out.
"""

from __future__ import annotations

import base64
import collections
import copy
import itertools
import random
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.errors import PositionError
from headrace.feed.plan.bookmark import PlannedPass, Progress
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.state_dict import Position, SamplerState

if TYPE_CHECKING:
    import torch


class LoaderSeeds:
    """The seeds of a loader: given, or drawn from torch when its DataLoader would draw them.

    Args:
        given: the user's; None to draw.
        generator: torch generator to draw from; None for the default one.
        once: whether the seed of torch's order is drawn once, not for every epoch (persistent workers).

    Attributes:
        own: seed of headrace's own order; None until it is drawn.
        drawn: seed that was drawn last for torch's order.
        ahead: seed of the next epoch, if a state that was told holds it already.
        order_ahead: likewise the seed of a RandomSampler's next order.
    """

    def __init__(self, given: int | None, generator: torch.Generator | None, *, once: bool) -> None:
        self.given = self.own = given
        self.drawn: int | None = None
        self.ahead: int | None = None
        self.order_ahead: int | None = None
        self._generator = generator
        self._once = once

    def of_order(self, *, sharded: bool) -> int:
        """Returns the seed of the own order: 0 for a shard without one, as all ranks must have the same."""
        if self.own is None:
            self.own = 0 if sharded else self._draw()
        return self.own

    def of_epoch(self) -> int:
        """Returns the seed of an epoch's random numbers with torch's order."""
        if self.given is not None:
            return self.given
        if self.drawn is None or not self._once:
            self.drawn, ahead = self._draw(), self.ahead
            if ahead is not None:
                self.drawn, self.ahead = ahead, None
        return self.drawn

    def of_next_epoch(self) -> int:
        """Returns what `of_epoch` will return for the next epoch. It may be drawn here: see `unmoved`."""
        if self.given is not None:
            return self.given
        if self.drawn is not None and self._once:
            return self.drawn
        if self.ahead is None:
            self.ahead = self._draw()
        return self.ahead

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """Sets the generators that torch draws seeds from back on exit, so that a state can be told at any time."""
        import torch

        generators = [torch.default_generator, *([self._generator] if self._generator is not None else [])]
        states = [generator.get_state() for generator in generators]
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)

    def _draw(self) -> int:
        try:
            return _draw(self._generator)
        except ModuleNotFoundError:  # arrays need no torch; then Python's generator is the one that the user may seed
            return random.getrandbits(63)


def _draw(generator: torch.Generator | None = None) -> int:
    """Draws a seed, as torch's DataLoader and RandomSampler do."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


_TENSOR = "__uint8_tensor__"


class SamplerSource(NamedTuple):
    """What a pass draws from.

    Attributes:
        sampler: gives keys, or batches of keys.
        size: keys a batch that are put together here; 0 when the sampler gives what is loaded at once.
        drop_last: whether an incomplete last batch is left out.
        batched: whether the items of a plan are batches.
    """

    sampler: Iterable[Any]
    size: int
    drop_last: bool
    batched: bool


def torch_sampler(sized: Any, generator: torch.Generator | None = None, *, shuffle: bool = False) -> Iterable[Any]:
    """Returns the sampler that torch's DataLoader makes when it is given none, of what has the dataset's length."""
    from torch.utils.data import RandomSampler, SequentialSampler

    return RandomSampler(sized, generator=generator) if shuffle else SequentialSampler(sized)


def batched(
    sampler: Iterable[Any], batch_size: int | None, *, drop_last: bool
) -> tuple[Iterable[Any], Iterable[list[Any]] | None]:
    """Returns a sampler and that of its batches, as torch's DataLoader has them."""
    from torch.utils.data import BatchSampler

    if batch_size is None:
        return sampler, None
    return sampler, BatchSampler(sampler, batch_size, drop_last)


def source_of(sampler: Iterable[Any] | None, batch_sampler: Iterable[list[Any]] | None) -> SamplerSource | None:
    """Returns the source of a loader's samplers; None when it has none.

    It looks into torch's own BatchSampler, so that the sampler in it can be asked for its state.
    """
    if batch_sampler is None:
        return SamplerSource(sampler, 0, False, False) if sampler is not None else None
    from torch.utils.data import BatchSampler

    if type(batch_sampler) is BatchSampler:
        return SamplerSource(batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last, True)
    return SamplerSource(batch_sampler, 0, False, True)


class _Mark(NamedTuple):
    """A place that the sampler has come to."""

    step: int
    samples: int


class _Note(NamedTuple):
    """The states of a sampler and its iterator at a place; `behind` is what is still to be left out to come there."""

    place: _Mark
    states: tuple[Any, Any]
    behind: int = 0


class SampledPass(PlannedPass):
    """One pass over a sampler.

    Args:
        source: what it draws from.
        seeds: of the loader: unless the epoch's is saved, it is drawn after the generator was set back.
        progress: of the pass; how far the trainer is.
        every: batches between two notes of the sampler's own state; None for none but the first.
        resumed: where it begins; None for the sampler's beginning.
        warns: whether a sampler that must run again is worth a warning: when it is the user's.
    """

    drawn = True

    def __init__(
        self,
        source: SamplerSource,
        seeds: LoaderSeeds,
        progress: Progress,
        every: int | None,
        resumed: Position | None,
        *,
        warns: bool,
    ) -> None:
        import torch

        super().__init__(progress)
        self.plans = self._plans()
        self._source = source
        self._every = every
        self._warns = warns
        self._first = resumed
        self._saved = (resumed.sampler if resumed is not None else None) or SamplerState()
        self._drawn: int | None = None
        self._ahead, seeds.order_ahead = seeds.order_ahead, None  # what `order_seed` returned, if it was asked
        self._generator_state: Any = None
        self._iterator: Iterator[Any] | None = None
        self._marks: collections.deque[_Mark] = collections.deque()
        self._notes: collections.deque[_Note] = collections.deque()
        generator = _generator(source.sampler)
        if self._saved.generator and generator is not None and generator is not torch.default_generator:
            generator.set_state(unpacked(self._saved.generator))
        self.seed = resumed.seed if resumed is not None and resumed.seed is not None else seeds.of_epoch()

    # The pass

    def _plans(self) -> Iterator[BatchPlan]:
        first = self._first
        step, samples = (first.step, first.samples) if first is not None else (0, 0)
        items = self._enter(step, samples)
        size, drop_last = self._source.size, self._source.drop_last
        batches = _batches(items, size, drop_last=drop_last) if size else items
        for number, item in enumerate(batches, step):
            keys = list(item) if self._source.batched else [item]
            plan = BatchPlan(self.progress.epoch, number, samples, keys, self.seed, self._source.batched)
            samples += len(keys)
            self._note(plan)
            yield plan

    def _enter(self, step: int, samples: int) -> Iterator[Any]:
        """Returns the sampler's iterator, where the pass begins."""
        from torch.utils.data import RandomSampler, SequentialSampler

        sampler, saved = self._source.sampler, self._saved
        self._marks.append(_Mark(step, samples))
        skip = samples if self._by_key else step
        if type(sampler) is SequentialSampler:
            return iter(range(len(sampler.data_source))[skip:])
        if type(sampler) is RandomSampler and sampler.generator is None:
            drawn = _draw() if saved.drawn is None else saved.drawn
            self._drawn = drawn if self._ahead is None else self._ahead
            sampler = _seeded(sampler, self._drawn)
        elif saved.sampler is not None and _is_stateful(sampler):
            sampler.load_state_dict(unpacked(saved.sampler))  # type: ignore[attr-defined]
        iterator = iter(sampler)
        if saved.iterator is not None and _is_stateful(iterator):
            iterator.load_state_dict(unpacked(saved.iterator))  # type: ignore[attr-defined]
        if saved.ended and (_is_stateful(sampler) or _is_stateful(iterator)):
            collections.deque(_rest(iterator), maxlen=0)
            iterator = iter(sampler)
        self._iterator, iterator = iterator, _rest(iterator)
        states = self._states()
        if states is not None:
            self._notes.append(_Note(self._marks[0], states, saved.behind))
            skip = saved.behind
        elif self._drawn is None:
            iterator = self._with_generator(iterator)
        self._skip(iterator, skip, step, warn=states is None)
        return iterator

    @property
    def _by_key(self) -> bool:
        """Whether the sampler gives keys, not batches of them."""
        return self._source.size > 0 or not self._source.batched

    def _skip(self, iterator: Iterator[Any], count: int, step: int, *, warn: bool) -> None:
        if count and warn and self._warns:
            warnings.warn(
                f"fast-forwarding {type(self._source.sampler).__name__} over {step} steps, "
                "because it has no state_dict() and load_state_dict()",
                stacklevel=1,
            )
        skipped = sum(1 for _ in itertools.islice(iterator, count))
        if skipped < count:
            raise PositionError(
                f"the sampler ended after {skipped} of the {count} items that the state says were consumed",
                hint="give the loader the sampler of the run that is resumed, set to the same epoch",
            )

    def _with_generator(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Notes the generator's state before the first key is drawn, or draws that key with the state saved."""
        import torch

        generator = _generator(self._source.sampler)
        if generator is None:
            return iterator
        own = generator is not torch.default_generator
        if own or not self._saved.generator:
            self._generator_state = generator.get_state()
            return iterator
        self._generator_state = unpacked(self._saved.generator)
        before = generator.get_state()
        generator.set_state(self._generator_state)
        try:
            first = list(itertools.islice(iterator, 1))
        finally:
            generator.set_state(before)
        return itertools.chain(first, iterator)

    # The state

    def _position(self, beginning: Position, step: int) -> Position:
        """See `PlannedPass`."""
        samples, sampler = self._state(step)
        epoch = self.progress.epoch
        return msgspec.structs.replace(
            beginning, epoch=epoch, step=step, samples=samples, seed=self.seed, sampler=sampler
        )

    def ended_position(self, beginning: Position) -> Position:
        """See `PlannedPass`: the sampler stands at its end."""
        states = self._states()
        if states is None:
            return beginning
        sampler = SamplerState(sampler=packed(states[0]), iterator=packed(states[1]), ended=True)
        return msgspec.structs.replace(beginning, sampler=sampler)

    def _state(self, step: int) -> tuple[int, SamplerState | None]:
        """Returns how many samples the trainer has taken, and what the sampler needs to come there.

        It may draw from torch's generator, which the caller sets back.
        """
        if not self._marks:  # nothing was drawn yet
            first = self._first
            if first is not None:
                return first.samples, first.sampler
            if self._ahead is None:
                self._ahead = order_seed(self._source)
            return 0, waiting_state(self._source, self._ahead)
        samples = next(mark.samples for mark in self._marks if mark.step == step)
        if self._notes:
            note = [note for note in self._notes if note.place.step <= step][-1]
            behind = samples - note.place.samples if self._by_key else step - note.place.step
            sampler, iterator = (packed(state) for state in note.states)
            return samples, SamplerState(sampler=sampler, iterator=iterator, behind=behind + note.behind)
        if self._drawn is None and self._generator_state is None:
            return samples, None
        return samples, SamplerState(drawn=self._drawn, generator=packed(self._generator_state) or "")

    def _note(self, plan: BatchPlan) -> None:
        """Notes where the sampler is after a batch, and forgets what the trainer has left behind."""
        mark, done = _Mark(plan.step + 1, plan.position + plan.rows), self.progress.step
        self._marks.append(mark)
        while self._marks[0].step < done:
            self._marks.popleft()
        if self._notes and self._every and mark.step % self._every == 0:
            self._notes.append(_Note(mark, self._states() or (None, None)))
            while len(self._notes) > 1 and self._notes[1].place.step <= done:
                self._notes.popleft()

    def _states(self) -> tuple[Any, Any] | None:
        """Returns copies of the states of the sampler and its iterator; None when neither has one."""
        things: list[Any] = [self._source.sampler, self._iterator]
        sampler, iterator = (copy.deepcopy(thing.state_dict()) if _is_stateful(thing) else None for thing in things)
        return None if sampler is None and iterator is None else (sampler, iterator)


def order_seed(source: SamplerSource) -> int | None:
    """Draws what a RandomSampler without a generator draws for its next order; None of any other sampler."""
    from torch.utils.data import RandomSampler

    sampler = source.sampler
    return _draw() if type(sampler) is RandomSampler and sampler.generator is None else None


def waiting_state(source: SamplerSource, drawn: int | None) -> SamplerState | None:
    """Returns what a sampler that waits for its next pass needs: `order_seed`, or the state of its own generator."""
    import torch

    if drawn is not None:
        return SamplerState(drawn=drawn)
    generator = _generator(source.sampler)
    if generator is None or generator is torch.default_generator:
        return None
    return SamplerState(generator=packed(generator.get_state()))


def _generator(sampler: object) -> Any:
    """Returns the torch generator that a random sampler, or the one in a batch sampler, draws from; None without."""
    import torch
    from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    own = getattr(sampler, "generator", None)
    if own is None and isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
        return torch.default_generator
    if isinstance(own, torch.Generator):
        return own
    inner = getattr(sampler, "sampler", None)
    return _generator(inner) if inner is not None else None


def _is_stateful(thing: object) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _seeded(sampler: Any, seed: int) -> Any:
    """Returns the keys in the order that a RandomSampler has when it draws this seed."""
    import torch
    from torch.utils.data import RandomSampler

    generator = torch.Generator()
    generator.manual_seed(seed)
    return RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, generator)


def _rest(iterator: Iterator[Any]) -> Iterator[Any]:
    """Returns what an iterator still gives; its own `__iter__`, which may begin it again, is not called any more."""
    return map(next, itertools.repeat(iterator))


def _batches(keys: Iterator[Any], size: int, *, drop_last: bool) -> Iterator[list[Any]]:
    """Puts keys together, as torch's BatchSampler does."""
    while batch := list(itertools.islice(keys, size)):
        if len(batch) == size or not drop_last:
            yield batch


def packed(state: Any) -> Any:
    """Turns a sampler's state, or a generator's, into plain data. Raises PositionError if it holds anything else."""
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    if isinstance(state, dict) and all(isinstance(key, str) for key in state):
        return {key: packed(item) for key, item in state.items()}
    if isinstance(state, (list, tuple)):
        return [packed(item) for item in state]
    import torch

    if isinstance(state, torch.Tensor) and state.dtype == torch.uint8 and state.ndim == 1:
        return f"{_TENSOR}{base64.b85encode(zlib.compress(state.numpy().tobytes(), 9)).decode()}"
    raise PositionError(
        f"the sampler's state_dict() holds a {type(state).__name__}, which is not plain data",
        hint="let it hold numbers, strings, None, lists, dicts and generator states",
    )


def unpacked(state: Any) -> Any:
    """Turns what `packed` returned back."""
    if isinstance(state, str) and state.startswith(_TENSOR):
        import torch

        return torch.frombuffer(
            bytearray(zlib.decompress(base64.b85decode(state.removeprefix(_TENSOR)))), dtype=torch.uint8
        )
    if isinstance(state, dict):
        return {key: unpacked(item) for key, item in state.items()}
    if isinstance(state, list):
        return [unpacked(item) for item in state]
    return state

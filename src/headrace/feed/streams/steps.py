"""Lanes that are open, and steps: what `.map`, `.filter` and `.flat_map` make of rows or a lane's outputs."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from headrace.errors import HeadraceError, interruptions, text_of


class Restart(NamedTuple):
    """Where a lane can be opened again.

    Attributes:
        place: plain data; None for the lane's beginning.
        made: outputs of the lane that lie before it.
    """

    place: Any
    made: int


class Lane(Iterator[Any]):
    """A lane that is open.

    Attributes:
        restart: where it can be opened again. It may lie some outputs before the next one: they are made again then.
        tokens, padding: of the packed sequence whose first output is the latest one; 0 where there is none.
        source: of a mixture of streams, that the latest output came of; empty where there is none.
        seeds_itself: whether it sets the generators before anything that it makes an output of.
    """

    restart: Restart
    seeds_itself = False
    source = ""
    tokens = 0
    padding = 0


Opener = Callable[[Restart], Lane]
BEGINNING = Restart(None, 0)


Kind = Literal["map", "filter", "flat_map"]
Steps = tuple[tuple[Kind, Callable[[Any], Any]], ...]
Self = TypeVar("Self", bound="Stepped")
_KEPT = 4096  # inputs whose outputs are counted before it is looked which of them are still needed


@dataclass(frozen=True)
class LeftOut:
    """Rows that were left out of a lane because they raised.

    Attributes:
        rows: their numbers, or those of inputs of steps, and why. Those of a source of a mixture have its name
            before: ``web/7``.
        source: that name, with a slash; empty outside of mixtures.
    """

    rows: list[tuple[int | str, str]] = field(default_factory=list)
    source: str = ""

    def of_source(self, name: str) -> LeftOut:
        """Returns what takes those of a source of the mixture: they come to the others."""
        return LeftOut(self.rows, f"{self.source}{name}/")

    def add(self, row: int, reason: str) -> None:
        """Notes a row."""
        self.rows.append((f"{self.source}{row}" if self.source else row, reason))


def require_callable(function: object, method: str) -> None:
    """Raises TypeError if what a method of a source was given is no function."""
    if not callable(function):
        raise TypeError(f".{method}() takes a function of one row, got {function!r}")


def outputs_of(steps: Steps, value: Any) -> Iterator[Any]:
    """Yields what steps make of a value: none, one or many."""
    for number, (kind, function) in enumerate(steps, 1):
        result = function(value)
        if kind == "map":
            value = result
        elif kind == "flat_map":
            if not isinstance(result, Iterable) and not hasattr(result, "__getitem__"):
                name = getattr(function, "__qualname__", repr(function))
                raise TypeError(
                    f".flat_map() takes a function that returns an iterable of rows, be it empty; {name} returned "
                    f"{result!r}"
                )
            for row in result:
                yield from outputs_of(steps[number:], row)
            return
        elif not result:
            return
    yield value


def left_out(skipped: LeftOut | None, row: int, error: BaseException) -> bool:
    """Notes a row that raised, if such rows are left out. Returns whether they are; what headrace raises never is."""
    if skipped is None or isinstance(error, HeadraceError):
        return False
    skipped.add(row, f"{type(error).__name__}: {text_of(error)}")
    return True


def gives_many(steps: Steps) -> bool:
    """Whether more than one output may come of a value."""
    return any(kind == "flat_map" for kind, _ in steps)


class Stepped:
    """What steps can be put behind. It has no count: it is read in lanes.

    Attributes:
        steps: what is done with each output, in order.
    """

    steps: Steps

    @property
    def counts(self) -> list[tuple[str, int]]:
        """One shard without a count."""
        return [("", -1)]

    def _then(self: Self, kind: Kind, function: Callable[[Any], Any]) -> Self:
        more = copy.copy(self)
        more.steps = (*self.steps, (kind, function))
        return more

    def map(self: Self, function: Callable[[Any], Any]) -> Self:
        """Returns what a function makes of every output. It may draw random numbers.

        Raises:
            TypeError: it cannot be called.
        """
        require_callable(function, "map")
        return self._then("map", function)

    def filter(self: Self, predicate: Callable[[Any], bool]) -> Self:
        """Returns the outputs that a predicate holds for. It may draw random numbers.

        Raises:
            TypeError: it cannot be called.
        """
        require_callable(predicate, "filter")
        return self._then("filter", predicate)

    def flat_map(self: Self, function: Callable[[Any], Iterable[Any]]) -> Self:
        """Returns everything in what a function makes of every output: none, one or many. It may draw random numbers.

        Raises:
            TypeError: it cannot be called.
        """
        require_callable(function, "flat_map")
        return self._then("flat_map", function)


class StepsLane(Lane):
    """What steps make of the outputs of an open lane, its inputs.

    It can be opened where that lane can, before an input. How many outputs came of the inputs before is kept for those
    from there on.

    Args:
        steps: see above.
        opened: opens the lane of the inputs at a place.
        start: a `restart` of this lane.
        seed: sets the generators for the input of a number.
        skipped: takes numbers of inputs that the steps raise over, and why, which are left out then; None to raise.
    """

    def __init__(
        self,
        steps: Steps,
        opened: Opener,
        start: Restart,
        seed: Callable[[int], None],
        skipped: LeftOut | None = None,
    ) -> None:
        self._skipped = skipped
        inner = BEGINNING if start.place is None else Restart(*start.place)
        self._steps, self._seed, self._many = steps, seed, gives_many(steps)
        self._lane = opened(inner)
        self._taken, self._made = inner.made, start.made  # inputs and outputs
        self._first, self._before = inner.made, deque([start.made])  # outputs before that input, the next one, ...
        self._opens = start  # before the latest input
        self._outputs: Iterator[Any] = iter(())
        self._counted = True

    def __next__(self) -> Any:
        while True:
            try:
                for output in self._outputs:
                    self._made += 1
                    self.tokens, self.padding = (0, 0) if self._counted else (self._lane.tokens, self._lane.padding)
                    self._counted, self.source = True, self._lane.source
                    return output
            except interruptions():
                raise
            except BaseException as error:
                if not left_out(self._skipped, self._taken - 1, error):
                    raise
                self._outputs = iter(())
            self._count()
            if self._many or len(self._before) > _KEPT:
                self._opens = self._boundary()
            value = next(self._lane)
            self._seed(self._taken)
            self._taken += 1
            self._outputs, self._counted = outputs_of(self._steps, value), False

    @property
    def restart(self) -> Restart:  # type: ignore[override]
        """Before the latest input as long as more may come of it, else where the lane of the inputs can be opened."""
        return self._opens if self._many else self._boundary()

    def _count(self) -> None:
        """All outputs of the inputs so far were made."""
        if self._first + len(self._before) == self._taken:
            self._before.append(self._made)

    def _boundary(self) -> Restart:
        self._count()
        inner = self._lane.restart
        needed = self._taken if inner.place is None else inner.made
        while self._first < needed:
            self._before.popleft()
            self._first += 1
        return BEGINNING if inner.place is None else Restart(tuple(inner), self._before[0])

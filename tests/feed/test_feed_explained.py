"""An error over rows that do not stack: torch's own text, and which field it is; explaining it never raises."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from effort import SOAK
from leaf_kinds import Level, Word
from torch.utils.data import DataLoader as TorchLoader

from headrace.errors import HeadraceError, PipelineError, WorkerError, text_of
from headrace.feed import DataLoader, mix, pipeline, stack_arrays
from headrace.feed.pipelines.fetch import uneven_field
from headrace.feed.wire.remote_errors import remade, remote_error

Pair = namedtuple("Pair", ["left", "right"])
Field = Callable[[int], Any]

# What stacks, or is left as it is, though rows differ: never the culprit.
HARMLESS: dict[str, Field] = {
    "0-d tensor": torch.tensor,
    "0-d array": np.array,
    "scalar of NumPy": lambda row: np.float32(row),
    "int, float": lambda row: row if row else 0.5,
    "bool, int": lambda row: bool(row) if row else 3,
    "text": lambda row: "x" * row,
    "text, None": lambda row: None if row else "x",
    "text, bytes": lambda row: b"x" if row else "x",
    "tensor, parameter": lambda row: torch.nn.Parameter(torch.ones(2), False) if row else torch.ones(2),
    "more keys": lambda row: {"a": 1, **({"b": 2} if row else {})},
    "empty list": lambda row: [],
}
# What does not, and how that is told; "" where only torch's text tells it.
CULPRITS: dict[str, tuple[Field, str]] = {
    "ragged tensor": (lambda row: torch.zeros(2 + row), " has the shapes (2,) and (3,)"),
    "ragged array": (lambda row: np.zeros((3, 2 + row)), " has the shapes (3, 2) and (3, 3)"),
    "ragged 0-d": (lambda row: torch.zeros([1] * row), " has the shapes () and (1,)"),
    "ragged list": (lambda row: [1] * (2 + row), " has the shapes (2,) and (3,)"),
    "None": (lambda row: None, " is None"),
    "None first": (lambda row: None if not row else 1, " is None"),
    "number, text": (lambda row: "x" if row else 1, " holds int and str"),
    "tensor, number": (lambda row: 1 if row else torch.tensor(1), " holds Tensor and int"),
    "fewer keys": (lambda row: {"a": 1, **({} if row else {"b": 2})}, "['b'] is not in every sample"),
    "0-d array of text": (lambda row: np.array("x" * (1 + row)), ""),
    "array of text": (lambda row: np.array(["x", "yy"]), ""),
    "array of objects": (lambda row: np.array([None, {}]), ""),
    "object": (lambda row: object(), ""),
}
WRAPS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "dict": (lambda before, it, behind: {"before": before, "it": it, "behind": behind}, "['it']"),
    "tuple": (lambda before, it, behind: (before, it, behind), "[1]"),
    "list in dict": (lambda before, it, behind: {"x": [before, it], "y": behind}, "['x'][1]"),
    "named tuple in tuple": (lambda before, it, behind: (before, Pair(it, behind)), "[1][0]"),
    "dict in dict": (lambda before, it, behind: {"a": before, "b": {"c": it, "d": (behind,)}}, "['b']['c']"),
}


def cases() -> Iterator[tuple[list[Any], str]]:
    """Yields rows that do not stack, and what is to be told beside torch's text."""
    chance = random.Random(34)
    for field, how in CULPRITS.values():
        for wrap, place in WRAPS.values():
            for neighbour in HARMLESS.values():
                behind = chance.choice([*HARMLESS.values(), *(culprit for culprit, _ in CULPRITS.values())])
                rows = [wrap(neighbour(row), field(row), behind(row)) for row in range(3)]
                yield rows, f"; batch{place}{how}: " if how else ""


def error_of(loader: Any) -> BaseException:
    with pytest.raises(BaseException) as raised:  # a panic is no Exception
        next(iter(loader))
    return raised.value


@pytest.mark.promise("feed-errors", "an error over rows that do not stack is torch's own and names the field")
def test_an_error_over_rows_is_torch_s_own_and_names_the_field_that_does_not_stack() -> None:
    for rows, told in cases():
        ours, theirs = error_of(DataLoader(rows, 3, num_workers=0)), error_of(TorchLoader(rows, 3))
        assert type(ours) is type(theirs), rows
        said, own = text_of(ours), text_of(theirs)
        if isinstance(ours, KeyError):
            said, own = str(ours.args[0]), str(theirs.args[0])
        assert said.startswith(own + told), rows
        assert bool(told) or said == own, rows


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def test_a_worker_s_error_over_rows_is_torch_s_own_too() -> None:
    chosen = [case for case in cases() if not any(type(row).__name__ == "object" for row in case[0])][::17]
    dataset = Rows([row for rows, _ in chosen for row in rows])
    with DataLoader(dataset, 3, num_workers=1) as loader:
        batches = iter(loader)
        for rows, told in chosen:
            theirs = error_of(TorchLoader(rows, 3))
            with pytest.raises(type(theirs)) as raised:
                next(batches)
            own = str(theirs.args[0]) if isinstance(theirs, KeyError) else str(theirs)
            assert own + told in str(raised.value)


class Panic(BaseException):
    """As pyo3's."""


class Hostile:
    """Raises whatever is asked of it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def _fail(self, *_: Any) -> Any:
        raise self.error

    __len__ = __repr__ = __str__ = __eq__ = __iter__ = __getitem__ = _fail  # type: ignore[assignment]
    __hash__ = object.__hash__
    shape = property(_fail)


@pytest.mark.promise("feed-errors", "an error over rows that do not stack is torch's own and names the field")
@pytest.mark.parametrize("error", [ValueError("hostile"), Panic("hostile"), RecursionError("hostile")], ids=repr)
def test_objects_that_raise_when_they_are_looked_at_do_not_hide_the_error(error: BaseException) -> None:
    hostile = Hostile(error)
    for rows in ([hostile, 1], [{"a": hostile}, {"a": torch.ones(2)}], [(torch.ones(2), hostile)] * 2):
        ours, theirs = error_of(DataLoader(rows, 2, num_workers=0)), error_of(TorchLoader(rows, 2))
        assert type(ours) is type(theirs)
        assert str(ours).startswith(str(theirs))
        sources = mix({name: [row, row] for name, row in zip("ab", rows, strict=True)}, {"a": 1, "b": 1})
        other = error_of(TorchLoader(rows[::-1], 2))  # a mixture shuffles its sources: either row may come first
        assert type(error_of(DataLoader(sources, 4, num_workers=0))) in (type(theirs), type(other))


class Silent(ValueError):
    """An error of a type that takes no text, and whose text fails."""

    def __init__(self, *_: Any) -> None:
        super().__init__(Hostile(ValueError("hostile")))

    def __str__(self) -> str:
        raise ZeroDivisionError


class Raises:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Silent


def test_an_error_whose_text_fails_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils import collate

    def fails(batch: Any, **_: Any) -> Any:
        raise Silent

    monkeypatch.setitem(collate.default_collate_fn_map, Raises, fails)
    assert type(error_of(DataLoader([(1, Raises()), (1, 2)], 2, num_workers=0))) is Silent


def test_the_field_is_told_of_stack_arrays_too() -> None:
    rows = [{"label": np.array(row), "text": "x" * row, "image": np.zeros(2 + row)} for row in range(2)]
    assert uneven_field(rows, stack_arrays) == "batch['image'] has the shapes (2,) and (3,)"
    with pytest.raises(ValueError, match=r"; batch\['image'\] has the shapes \(2,\) and \(3,\): make the rows equal"):
        next(iter(DataLoader(rows, 2, num_workers=0, collate_fn=stack_arrays)))


@pytest.mark.parametrize(
    "error",
    [
        SyntaxError("bad", ("file.py", 1, 2, 5)),  # whose traceback cannot be made
        LookupError("\udc80"),
        Silent(),
        ValueError(Hostile(ValueError("hostile"))),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_that_cannot_be_shown_is_sent_and_raised(error: Exception) -> None:
    told = remote_error(error)
    for text in (told.kind, told.message, told.traceback):
        text.encode()
    with pytest.raises((type(error), WorkerError)):
        raise remade(told, "raised on worker 0", WorkerError)


KEYS: dict[str, Any] = {
    "half a surrogate": "a\udc80", "beyond 64 bits": 2**70, "subclass of str": Word("a"), "enum": Level.LOW,
    "bool": True, "long": "x" * 600, "int": 5,
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS if SOAK else ["half a surrogate", "beyond 64 bits", "enum"])
def test_keys_of_rows_and_of_samplers_arrive_as_they_are(name: str) -> None:
    key = KEYS[name]
    for dataset in ([{key: 1}] * 2, [({"a": {key: torch.ones(2)}},)] * 2):
        batches = [next(iter(DataLoader(dataset, 2, num_workers=workers))) for workers in (0, 1)]
        inner = [next(iter(batch if isinstance(batch, dict) else batch[0]["a"])) for batch in batches]
        assert inner[0] == inner[1] == key
        assert type(inner[0]) is type(inner[1]) is type(key)
    for keys in ([key, key], [key, 7], [(key, None)]):
        with DataLoader(dict.fromkeys(keys, 3), 1, num_workers=1, sampler=keys) as loader:
            assert [batch.item() for batch in loader] == [3] * len(keys)


@pytest.mark.parametrize("index", [slice(0, 3), frozenset([1]), range(3)], ids=repr)
def test_an_index_that_cannot_be_sent_is_refused_as_one(index: Any) -> None:
    loader = DataLoader(torch.arange(10), sampler=[index], batch_size=None, num_workers=1)
    with pytest.raises(PipelineError, match="an index that the sampler gave cannot be sent to a worker") as raised:
        next(iter(loader))
    assert "let the dataset make of them what it needs" in raised.value.hint
    assert "return" not in str(raised.value)


class Sharded:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index

    def __shards__(self) -> list[tuple[str, int]]:
        return [("a\udc80", 2)]


@pipeline
def named(folder: Any) -> list[int]:
    return [1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: mix({"a\udc80": [1], "b": [2]}, {"a\udc80": 1, "b": 1}),
        lambda: next(iter(DataLoader(Sharded(), 2, num_workers=1))),
        lambda: named(folder="a\udc80"),
        lambda: named(folder=[{"a\udc80": 1}]),
    ],
)
def test_names_without_utf_8_are_refused_in_words(make: Callable[[], Any]) -> None:
    with pytest.raises((HeadraceError, ValueError), match="UTF-8") as raised:
        make()
    assert not isinstance(raised.value, UnicodeError)
    assert "a\\udc80" in str(raised.value)


@pytest.mark.parametrize(
    ("levels", "workers", "told"),
    [(40, 1, "deeper than 32 levels"), *((2000, n, "too deep to be stacked") for n in (0, 1))],
)
def test_samples_nested_too_deep_are_one_error_in_words(levels: int, workers: int, told: str) -> None:
    sample: Any = 1.0
    for _ in range(levels):
        sample = [sample]
    with pytest.raises(PipelineError, match=f"nested {told}"):
        next(iter(DataLoader([sample] * 2, 2, num_workers=workers)))

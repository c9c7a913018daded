"""Plain values, also nested in lists, tuples and dicts, as one piece of msgpack.

A tree is plain when nothing else is in it, down to the last value and by exact type: an Enum, a NumPy scalar or a
subclass of str would come back as another type. That is looked at level by level, in calls that go over a whole level
at once, because a value must cost less here than in pickle. What msgpack has no form for travels beside it or as an
extension: which arrays of a level are tuples (*marks*), complex numbers, ints beyond 64 bits and strings with halves of
surrogate pairs.

What is decoded comes from a peer: whatever it sends, it gets plain values made, or `ProtocolError`.

Marks: one for each level of arrays, as deep as there are tuples: "l" if all of them are lists, "u" if all are tuples,
else a byte for each, 1 for a tuple. A level's items are those of its arrays, and then the values of its dicts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from headrace.errors import PipelineError, ProtocolError

SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})
CONTAINERS = frozenset({list, tuple, dict})
MAX_LEVELS = 256  # of nested containers; msgpack's own limit lies where the interpreter's stack ends

_SEQUENCES = frozenset({list, tuple})
_PLAIN = SCALARS | CONTAINERS
_KEYS = SCALARS - {complex}
_COMPLEX, _INT, _TEXT = 1, 2, 3
_TYPED = 8  # levels for which there may be a decoder of their own
Marks = Sequence[str | bytes]


def items_of(sequences: Sequence[Any], mappings: Sequence[dict[Any, Any]]) -> Iterator[Any]:
    """Goes through what is one level below some containers."""
    return chain(chain.from_iterable(sequences), chain.from_iterable(map(dict.values, mappings)))


def split(level: list[Any], types: set[type]) -> tuple[list[Any], list[dict[Any, Any]]]:
    """Returns the sequences and the dicts of a level, which holds values of these types."""
    if len(types) == 1:
        return ([], level) if dict in types else (level, [])
    sequences = [value for value in level if type(value) in _SEQUENCES] if types & _SEQUENCES else []
    return sequences, [value for value in level if type(value) is dict] if dict in types else []


def marks_of(value: Any) -> list[str | bytes] | None:
    """Returns the marks of a list, tuple or dict; None if it is not plain.

    Raises:
        PipelineError: it is nested too deep.
    """
    marks: list[str | bytes] = []
    level: list[Any] = [value]
    types = {type(value)}
    for depth in range(MAX_LEVELS):
        if types <= SCALARS:
            return marks
        if not types <= _PLAIN:
            return None
        sequences, mappings = split(level, types)
        if mappings and not {*map(type, chain.from_iterable(mappings))} <= _KEYS:
            return None
        if tuple in types:
            marks += ["l"] * (depth - len(marks))
            marks.append("u" if list not in types else bytes(type(array) is tuple for array in sequences))
        level = [*items_of(sequences, mappings)]
        types = {*map(type, level)}
    raise PipelineError(f"nested deeper than {MAX_LEVELS} levels")


def encode(value: Any) -> bytes | None:
    """Encodes a plain tree, without its marks; None for one with a dict whose keys need extensions."""
    try:
        return _encode(value)
    except (OverflowError, ValueError):  # of an int, of a string
        try:
            return _encode(_extended(value))
        except TypeError:  # they have no hash
            return None


def _complex(value: complex) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_COMPLEX, struct.pack("<dd", value.real, value.imag))


_encode = msgspec.msgpack.Encoder(enc_hook=_complex).encode


def _extended(value: Any) -> Any:
    """Returns a tree in which what msgpack has no form for is an extension."""
    kind = type(value)
    if kind is dict:
        return {_extended(key): _extended(item) for key, item in value.items()}
    if kind in CONTAINERS:
        return [_extended(item) for item in value]
    if kind is int and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if kind is str and not value.isascii():
        return msgspec.msgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass")) if is_broken(value) else value
    return value


def is_broken(text: str) -> bool:
    """Whether a string holds halves of surrogate pairs, so that it has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def decode(raw: bytes | memoryview, marks: Marks = ()) -> Any:
    """Returns the plain tree that a peer encoded. Raises ProtocolError if it is none."""
    try:
        if not marks:
            return _decode(raw)
        mixed = next((depth for depth in range(len(marks), 0, -1) if marks[depth - 1] not in ("l", "u")), 0)
        if mixed < len(marks) <= _TYPED:
            with contextlib.suppress(msgspec.ValidationError):  # bytes in it, or an extension
                value = _decoder(("l",) * mixed + tuple(marks[mixed:]))(raw)
                return _with_tuples(value, marks[:mixed]) if mixed else value
        return _with_tuples(_decode(raw), marks)
    except (msgspec.DecodeError, struct.error, RecursionError, MemoryError, TypeError, ValueError) as error:
        raise ProtocolError(f"plain values in a batch description that cannot be decoded: {error}") from error


def digest_of(facts: Any, what: bytes, size: int = 8) -> str:
    """Returns what tells plain facts from others, also where another process, or another headrace, looks at them.

    Args:
        facts: what msgpack has a form for.
        what: they are, so that no other facts have the digest; at most 16 bytes.
        size: bytes, of which each is two of the hex digits that are returned.
    """
    return hashlib.blake2b(msgspec.msgpack.encode(facts), digest_size=size, person=what).hexdigest()


def _extension(code: int, data: memoryview) -> Any:
    if code == _COMPLEX:
        return complex(*struct.unpack("<dd", data))
    if code == _INT:
        return int.from_bytes(data, "little", signed=True)
    if code == _TEXT:
        return str(data, "utf-8", "surrogatepass")
    raise ValueError(f"an extension of an unknown kind: {code}")


_decode = msgspec.msgpack.Decoder(ext_hook=_extension).decode
_decoders_lock = threading.Lock()


@functools.lru_cache(maxsize=64)
def _decoder(marks: tuple[str, ...]) -> Callable[[Any], Any]:
    """Returns what decodes arrays as lists or tuples, level by level: much quicker than to make tuples of lists."""
    level: Any = Any
    for mark in reversed(marks):
        array: Any = tuple[level, ...] if mark == "u" else list[level]
        level = bool | int | float | str | array | dict[Any, level] | None
    with _decoders_lock:  # two threads that make decoders at once crash the interpreter
        return msgspec.msgpack.Decoder(level, ext_hook=_extension).decode


def _with_tuples(root: Any, marks: Marks) -> Any:
    """Makes tuples of those lists that the marks name, from the deepest level upwards."""
    levels: list[tuple[list[Any], list[list[Any]], list[dict[Any, Any]]]] = []
    level = [root]
    for _ in marks:
        sequences, mappings = split(level, {*map(type, level)})
        levels.append((level, sequences, mappings))
        level = [*items_of(sequences, mappings)]
    items: Iterator[Any] | None = None  # of the level below; None while they are what they were
    for mark, (level, sequences, mappings) in zip(reversed(marks), reversed(levels), strict=True):
        if items is not None:
            for sequence in sequences:
                sequence[:] = islice(items, len(sequence))
            for mapping in mappings:
                mapping.update(zip(mapping, items, strict=False))  # the first of them ends it
        arrays: Iterator[Any] = iter(sequences)
        if mark == "u":
            arrays = map(tuple, sequences)
        elif mark != "l":
            arrays = (tuple(array) if flag else array for array, flag in zip(sequences, mark, strict=True))
        whole = len(sequences) == len(level)
        items = arrays if whole else iter([next(arrays) if type(value) is list else value for value in level])
    assert items is not None, "there are marks"
    return next(items)

"""A sequence of packed documents: what is asked of documents, and the arrays that pieces of them make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import PipelineError

Tokens = NDArray[Any]
Method = Literal["best_fit", "concat"]
Longer = Literal["split", "error"]

DTYPES = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")


def token_dtype(dtype: DTypeLike) -> str:
    """Returns the name of a dtype of tokens. Raises ValueError if it is none, or not one of whole numbers."""
    try:
        name = str(np.dtype(dtype).name) if dtype is not None else ""
    except (TypeError, ValueError):
        name = ""
    if name not in DTYPES:
        raise ValueError(f"dtype of tokens must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return name


@dataclass(frozen=True)
class Packing:
    """How documents are packed; see `packing.pack` for the arguments."""

    length: int
    method: Method = "best_fit"
    block: int = 1024
    separator: int | None = None
    padding: int = 0
    longer: Longer = "split"
    field: str | None = None
    dtype: str = "int64"

    def __post_init__(self) -> None:
        for name, value in (("length", self.length), ("block", self.block)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.method not in ("best_fit", "concat"):
            raise ValueError(f'method must be "best_fit" or "concat", got {self.method!r}')
        if self.longer not in ("split", "error"):
            raise ValueError(f'longer must be "split" or "error", got {self.longer!r}')
        limits = np.iinfo(token_dtype(self.dtype))
        for name, token in (("padding", self.padding), ("separator", self.separator)):
            whole = isinstance(token, int) and not isinstance(token, bool) and limits.min <= token <= limits.max
            if not whole and not (token is None and name == "separator"):
                raise ValueError(f"{name} must be a token, a whole number that fits into {self.dtype}, got {token!r}")

    def tokens(self, document: Any, number: int) -> Tokens:
        """Returns the tokens of a document, with the separator.

        Args:
            document: an array or list of whole numbers, or with `field` a dict that holds one.
            number: of the document in its lane, for messages.

        Raises:
            PipelineError: it is something else, or too long.
        """
        if self.field is not None:
            if not isinstance(document, Mapping) or self.field not in document:
                fields = ", ".join(map(str, document)) if isinstance(document, Mapping) else ""
                seen = f"has {fields}" if fields else f"is of type {type(document).__name__}"
                raise PipelineError(
                    f"document {number} of the lane has no field {self.field!r}: it {seen}",
                    hint="name the field that holds the tokens: .pack(length, field=...)",
                )
            document = document[self.field]
        found = np.asarray(document)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise PipelineError(
                f"a document is a list or an array of whole numbers, and document {number} of the lane is "
                f"{type(document).__name__} {str(document)[:60]!r}",
                hint="tokenise in .map() before .pack(), or name the field with the tokens: .pack(length, field=...)",
            )
        if found.size and not np.can_cast(found.dtype, self.dtype):
            limits, least, most = np.iinfo(self.dtype), found.min(), found.max()
            if least < limits.min or most > limits.max:
                wrong = most if most > limits.max else least
                raise PipelineError(
                    f"document {number} of the lane has the token {wrong}, which does not fit {self.dtype}",
                    hint="take a larger dtype: .pack(length, dtype=...)",
                )
        if self.separator is not None:
            found = np.append(found.astype(self.dtype), self.separator)
        if self.longer == "error" and found.size > self.length:
            raise PipelineError(
                f"document {number} of the lane has {found.size} tokens, and a sequence has {self.length}",
                hint='cut it in .map() before, or take longer="split"',
            )
        return found

    def sequence(self, pieces: list[Tokens]) -> dict[str, Tokens]:
        """Returns a sequence of pieces of documents: `tokens`, `segments` (0 for padding) and `positions`."""
        tokens = np.full(self.length, self.padding, self.dtype)
        segments = np.zeros(self.length, np.int32)
        positions = np.zeros(self.length, np.int32)
        at = 0
        for segment, piece in enumerate(pieces, 1):
            end = at + piece.size
            tokens[at:end], segments[at:end] = piece, segment
            positions[at:end] = np.arange(piece.size, dtype=np.int32)
            at = end
        return {"tokens": tokens, "segments": segments, "positions": positions}

"""Orders: which row of a dataset stands at which plan position of an epoch, as a pure function.

`EpochPlan` cuts positions into batches of ranks and knows nothing of rows; an order maps positions to rows and knows
nothing of batches and ranks. An order is evaluated for the positions that are asked for, whichever they are.

`permute(positions, n, key)` needs O(1) memory and time for a position, so a plan of a billion samples starts, and
resumes in its middle, at once. It is an eight-round Feistel network over the smallest even number of bits that holds
n, walked until the value falls inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002);
the round function is the 64-bit finaliser of MurmurHash3. It is a shuffle for training, not a cipher.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.feed.identifiers import positive

_ROUNDS = 8
_ROUND_KEYS = struct.Struct(f"<{_ROUNDS}Q")
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_WORD = (1 << 64) - 1
_FEW = 16  # values that are walked one by one


def permute(
    positions: NDArray[np.int64], n: int, key: bytes, tweaks: NDArray[np.uint64] | None = None
) -> NDArray[np.int64]:
    """Maps positions to a permutation of 0..n-1.

    Args:
        positions: values in [0, n), any shape, int64.
        n: size of the domain, at least 1.
        key: any bytes; equal keys give equal permutations, on every machine.
        tweaks: one number a position; each number has a permutation of its own. None for the same one for all.

    Returns:
        An int64 array of the same shape.

    Raises:
        ValueError: a position is outside [0, n).
    """
    values = np.asarray(positions, dtype=np.int64)
    if n < 1:
        raise ValueError(f"the domain must hold at least one value, got n={n}")
    if values.size and (int(values.min()) < 0 or int(values.max()) >= n):
        raise ValueError(f"positions must lie in [0, {n}), got {int(values.min())}..{int(values.max())}")
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _ROUND_KEYS.unpack(hashlib.blake2b(key, digest_size=_ROUND_KEYS.size, person=b"permutation").digest())
    own = None if tweaks is None else _mix(tweaks + np.uint64(1)) << np.uint64(32)  # apart from the low bits of values
    mixed = _feistel(values.astype(np.uint64), half, keys, own).ravel()
    tweaked = None if own is None else own.ravel()
    outside = np.flatnonzero(mixed >= n)
    while outside.size > _FEW:
        walked = _feistel(mixed[outside], half, keys, None if tweaked is None else tweaked[outside])
        mixed[outside] = walked
        outside = outside[walked >= n]
    for place in outside.tolist():
        mixed[place] = _walk(int(mixed[place]), n, half, keys, 0 if tweaked is None else int(tweaked[place]))
    return mixed.astype(np.int64).reshape(values.shape)


def _feistel(
    values: NDArray[np.uint64], half: int, keys: tuple[int, ...], own: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        keyed = right ^ np.uint64(key)
        left, right = right, left ^ (_mix(keyed if own is None else keyed ^ own) & mask)
    mixed: NDArray[np.uint64] = (left << shift) | right
    return mixed


def _walk(value: int, n: int, half: int, keys: tuple[int, ...], own: int) -> int:
    """`_feistel` for one value, until it falls inside. For a few values NumPy's calls cost more than the arithmetic."""
    mask = (1 << half) - 1
    while value >= n:
        left, right = value >> half, value & mask
        for key in keys:
            mixed = right ^ key ^ own
            mixed = (mixed ^ mixed >> 33) * _FIRST & _WORD
            mixed = (mixed ^ mixed >> 33) * _SECOND & _WORD
            left, right = right, left ^ (mixed ^ mixed >> 33) & mask
        value = left << half | right
    return value


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(33))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(_SECOND)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(33))
    return mixed


@dataclass(frozen=True)
class Window:
    """A shuffle by windows of runs: what `DataLoader(shuffle=)` takes for data that lie in shards.

    A keyed permutation of the whole epoch reads at random all over the data. `Window(run, runs)` shuffles in two steps
    instead: runs of `run` consecutive rows are put into a random order, and then the rows of `runs` such runs, one
    window, are put into a random order among themselves. A window is read from at most `runs` + 2 places, so what is
    read at once (pages of a file, row groups of Parquet) is used soon. Nothing is buffered: like the permutation, the
    order is evaluated position by position, so that it starts, and resumes in its middle, at once.

    The quality is that of a shuffle buffer of `run` * `runs` rows over shards of `run` rows each: neighbours in the
    order correlate by about 1 / `runs`, where a full shuffle has 0 and none 1.

    Attributes:
        run: consecutive rows that stay together until they are in a window.
        runs: runs in a window.

    Raises:
        ValueError: a number below 1.
    """

    run: int = 1024
    runs: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", positive("run of a Window", self.run))
        object.__setattr__(self, "runs", positive("runs of a Window", self.runs))

    @property
    def rows(self) -> int:
        """Rows of a window, at most."""
        return self.run * self.runs

    def order(self, positions: NDArray[np.int64], n: int, key: bytes) -> NDArray[np.int64]:
        """Maps positions to rows: a permutation of 0..n-1 that is a function of the window, n and the key.

        Args:
            positions: values in [0, n), int64.
            n: rows of the epoch, at least 1.
            key: any bytes; equal keys give equal orders, on every machine.
        """
        windows = -(-n // self.rows)
        size = -(-n // windows)  # all windows are of one size, so none is too small to mix
        number = positions // size
        inside = positions - number * size
        last = (n - 1) // size
        mixed = np.empty_like(positions)
        at_end = number == last
        tweaks = number.astype(np.uint64)
        if at_end.any():
            mixed[at_end] = permute(inside[at_end], n - last * size, key + b"/window", tweaks[at_end])
        if not at_end.all():
            rest = ~at_end
            mixed[rest] = permute(inside[rest], size, key + b"/window", tweaks[rest])
        return self._row(mixed + number * size, n, key)

    def _row(self, places: NDArray[np.int64], n: int, key: bytes) -> NDArray[np.int64]:
        """Maps places in the sequence of permuted runs to rows. The short run at the data's end stands anywhere."""
        full, short = divmod(n, self.run)
        if full == 0:
            return places
        digest = hashlib.blake2b(key, digest_size=8, person=b"short run").digest()
        begin = int.from_bytes(digest, "little") % (full + 1) * self.run  # where the short run stands
        in_short = (places >= begin) & (places < begin + short)
        others = np.where(places < begin, places, places - short)
        others[in_short] = 0
        rows: NDArray[np.int64] = permute(others // self.run, full, key + b"/runs") * self.run + others % self.run
        rows[in_short] = full * self.run + (places[in_short] - begin)
        return rows


class Order(Protocol):
    """See the module."""

    def rows_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows at positions of an epoch, int64."""


@dataclass(frozen=True)
class RowOrder:
    """The rows of one dataset: as they are, or shuffled.

    Attributes:
        rows: of the dataset.
        seed: of the order; the epoch is mixed in.
        shuffle: whether the order is permuted, or the windows that it is permuted by.
    """

    rows: int
    seed: int
    shuffle: bool | Window = False

    def rows_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`."""
        key = f"{self.seed}/{epoch}".encode()
        if isinstance(self.shuffle, Window):
            return self.shuffle.order(positions, self.rows, key)
        return permute(positions, self.rows, key) if self.shuffle else positions

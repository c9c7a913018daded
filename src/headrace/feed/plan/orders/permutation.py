"""A keyed permutation of 0..n-1 that is evaluated position by position.

`permute(positions, n, key)` needs O(1) memory and time for a position, so a plan of a billion samples starts, and
resumes in its middle, at once. It is an eight-round Feistel network over the smallest even number of bits that holds
n, walked until the value falls inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002);
the round function is the 64-bit finaliser of MurmurHash3. It is a shuffle for training, not a cipher.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

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

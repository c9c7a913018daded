"""headrace's documented order, written again from its description, one number at a time and without NumPy.

An eight-round Feistel network over the smallest even number of bits that holds n; round keys are the little-endian
64-bit words of blake2b(key, 64 bytes, person "permutation"); the round function is the 64-bit finaliser of
MurmurHash3; a value outside [0, n) is sent through again.
"""

import struct
from hashlib import blake2b

MASK64 = (1 << 64) - 1


def keyed_order(n: int, key: bytes) -> list[int]:
    """Returns the permutation of 0..n-1 that belongs to a key."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = struct.unpack("<8Q", blake2b(key, digest_size=64, person=b"permutation").digest())
    order = []
    for position in range(n):
        value = _feistel(position, half, keys)
        while value >= n:
            value = _feistel(value, half, keys)
        order.append(value)
    return order


def _feistel(value: int, half: int, keys: tuple[int, ...]) -> int:
    left, right = value >> half, value & ((1 << half) - 1)
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & ((1 << half) - 1))
    return left << half | right


def _mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK64
    return value ^ value >> 33

"""headrace's documented order, written again from its description, one number at a time and without NumPy.

An eight-round Feistel network over the smallest even number of bits that holds n; round keys are the little-endian
64-bit words of blake2b(key, 64 bytes, person "permutation"); the round function is the 64-bit finaliser of
MurmurHash3; a value outside [0, n) is sent through again. With a tweak, the high 32 bits of every round's input are
also mixed with the low 32 bits of the finaliser of tweak + 1.

A shuffle by windows of `runs` runs of `run` rows: the full runs are permuted with the key and "/runs", and the short
one is put before a run that the key chooses; this sequence is cut into as few windows of equal size as possible, and
window w is permuted with the key and "/window" and the tweak w.
"""

import struct
from hashlib import blake2b

MASK64 = (1 << 64) - 1


def window_order(n: int, key: bytes, run: int, runs: int) -> list[int]:
    """Returns the shuffle by windows of 0..n-1 that belongs to a key."""
    full, short = divmod(n, run)
    blocks = [list(range(at * run, (at + 1) * run)) for at in keyed_order(full, key + b"/runs")] if full else []
    begin = int.from_bytes(blake2b(key, digest_size=8, person=b"short run").digest(), "little") % (full + 1)
    blocks.insert(begin, list(range(full * run, full * run + short)))
    rows = [row for block in blocks for row in block]
    windows = -(-n // (run * runs))
    size = -(-n // windows)
    order = []
    for number, start in enumerate(range(0, n, size)):
        window = rows[start : start + size]
        order += [window[at] for at in keyed_order(len(window), key + b"/window", number)]
    return order


def keyed_order(n: int, key: bytes, tweak: int | None = None) -> list[int]:
    """Returns the permutation of 0..n-1 that belongs to a key."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = struct.unpack("<8Q", blake2b(key, digest_size=64, person=b"permutation").digest())
    if tweak is not None:
        keys = tuple(word ^ (_mix(tweak + 1) << 32 & MASK64) for word in keys)
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

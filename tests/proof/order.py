"""The golden order files: what headrace's own plan is, for a grid of sizes, as of one version of the order.

    python tests/proof/order.py        writes golden/order-v<version>.json; a file that exists is never changed

A change of the order is a break for everyone who resumes from an old position or compares runs. Who must make one
raises ORDER_VERSION, here and where positions are saved, writes the new file and keeps the old ones.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

from headrace.feed.plan.epoch import EpochPlan

ORDER_VERSION = 1
GOLDEN = Path(__file__).parent / "golden" / f"order-v{ORDER_VERSION}.json"
SHOWN = 24  # longer plans are kept as a hash, and their first keys

SMALL = itertools.product((1, 2, 7, 8, 9, 64, 65), (1, 3, 8), (1, 2, 3, 8), (False, True), (False, True))
LARGE = itertools.product((1000, 4097), (25, 64), (1, 3, 8), (False, True), (False, True))
GRID = [size for size in itertools.chain(SMALL, LARGE) if size[0] >= size[2]]  # n, batch, world, drop_last, shuffle
SEEDS = [(0, 0), (7, 5), (2**63 + 1, 0)]  # seed, epoch
FAR = [(10**9, 256, 7, 0, 1_000_000), (10**9 + 7, 100, 0, 3, 9_999_999), (2**40, 64, 5, 1, 123_456_789)]


def order_of(plan: EpochPlan, epoch: int) -> dict[str, Any]:
    """Returns a plan's batches: first position and keys of each; a hash and the first keys of a long one."""
    batches = [[one.position, *one.keys] for one in plan.epoch(epoch)]
    keys = [key for batch in batches for key in batch[1:]]
    if len(keys) <= SHOWN:
        return {"batches": batches}
    written = json.dumps(batches, separators=(",", ":")).encode()
    return {"steps": len(batches), "first": keys[:8], "blake2b": hashlib.blake2b(written, digest_size=16).hexdigest()}


def golden() -> dict[str, Any]:
    """Returns the orders of the whole grid, by their arguments in words."""
    found: dict[str, Any] = {}
    for n, batch, world, drop, shuffle in GRID:
        for rank, (seed, epoch) in itertools.product(range(world), SEEDS if shuffle and world < 3 else SEEDS[1:2]):
            plan = EpochPlan(n, batch, seed, shuffle, drop, rank, world)
            words = f"n={n} batch={batch} rank={rank}/{world} drop_last={drop} shuffle={shuffle}"
            found[f"{words} seed={seed} epoch={epoch}"] = order_of(plan, epoch)
    for n, batch, seed, epoch, step in FAR:
        one = EpochPlan(n, batch, seed, shuffle=True).batch(epoch, step)
        found[f"n={n} batch={batch} seed={seed} epoch={epoch} step={step}"] = [one.position, *one.keys]
    return found


def main() -> None:
    if GOLDEN.exists():
        raise SystemExit(f"{GOLDEN} exists, and a version's order never changes: raise ORDER_VERSION")
    entries = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(order, separators=(',', ':'))}" for name, order in golden().items()
    )
    GOLDEN.write_text("{\n" + entries + "\n}\n")


if __name__ == "__main__":
    main()

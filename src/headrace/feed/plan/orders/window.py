"""A shuffle by windows of runs: an order that stays near to where the data lie, as a pure function.

A keyed permutation of the whole epoch reads at random all over the data. `Window(run, runs)` shuffles in two steps
instead: runs of `run` consecutive rows are put into a random order, and then the rows of `runs` such runs, one window,
are put into a random order among themselves. A window is read from at most `runs` + 2 places, so what is read at once
(pages of a file, row groups of Parquet) is used soon. Nothing is buffered: like the permutation, the order is evaluated
position by position, so that it starts, and resumes in its middle, at once.

The quality is that of a shuffle buffer of `run` * `runs` rows over shards of `run` rows each: neighbours in the order
correlate by about 1 / `runs`, where a full shuffle has 0 and none 1.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.feed.plan.orders.permutation import permute


@dataclass(frozen=True)
class Window:
    """A shuffle by windows: what `DataLoader(shuffle=)` takes for data that lie in shards.

    Attributes:
        run: consecutive rows that stay together until they are in a window.
        runs: runs in a window.

    Raises:
        ValueError: a number below 1.
    """

    run: int = 1024
    runs: int = 64

    def __post_init__(self) -> None:
        for name in ("run", "runs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} of a Window must be an integer of at least 1, got {value!r}")

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

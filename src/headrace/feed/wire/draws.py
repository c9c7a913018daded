"""What is asked of a lane, and what came: parts of the messages `SliceRequest` and `Done`.

The address of an output is (epoch, lane, k). A token is where a reader of the lane stood before its output `at`: it
saves the replay of what lies before, and nothing else. Without it the same outputs come, later.
"""

from __future__ import annotations

import msgspec

MAX_TOKEN = 64 << 10  # bytes; a longer one is not kept


class Draw(msgspec.Struct, frozen=True, array_like=True):
    """Outputs of one lane: from number `first` on, `count` of them, fewer at the lane's end.

    Attributes:
        lane, lanes: which one, of how many.
        first, count: see above.
        shuffle: whether the rows of a stream over counted shards are shuffled; run and runs of a `feed.Window`.
        drop_last: whether fewer than `count` outputs are none.
        at, token: see the module; without a token `at` is 0.
        skip: whether rows that a stream's steps raise over are left out.
        part: outputs that go into one batch together with those of other lanes; the outputs travel one by one then,
            and with `drop_last` whole parts only. 0: they are a batch by themselves, and travel as that.
        share: which part of the rows that the worker holds the lane takes, and of how many, where workers hold
            different shards; None where it is part `lane` of `lanes`.
    """

    lane: int
    lanes: int
    first: int
    count: int
    shuffle: bool | tuple[int, int] = False
    drop_last: bool = False
    at: int = 0
    token: bytes = b""
    part: int = 0
    skip: bool = False
    share: tuple[int, int] | None = None


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """What came of a `Draw`.

    Attributes:
        rows: outputs that were made.
        ended: whether the lane has none behind them.
        at, token: where the reader can be opened again; no token if it has none.
        behind: outputs before `first` that are still to be replayed. Then nothing was made, and it is asked again.
        note: what the user should know; empty for nothing.
        tokens, padding: of every output, where they are packed sequences: tokens of documents, and of padding.
        sources: of every output, where they are of a mixture: the names.
        skipped: rows that were left out, why, and the number of the output that comes next behind each. A row of a
            source of a mixture has the source's name before its number: ``web/7``.
    """

    rows: int
    ended: bool = False
    at: int = 0
    token: bytes = b""
    behind: int = 0
    note: str = ""
    tokens: list[int] = []
    padding: list[int] = []
    sources: list[str] = []
    skipped: list[tuple[int | str, str, int]] = []

"""The documented order of a mixture, written again from its description, one position at a time and without NumPy.

Of q samples, the left child of a node gets floor(q * left / both + 1/2), the right one the rest. There are two trees:
one halves the sources, the heaviest first; the other joins the two lightest until one is left. The one whose greatest
error is smaller is used: an error is half a sample at every division, times the shares that lie below it.

Position p of an epoch lies in the window of 64 positions that begins at a multiple of 64 behind the weights' beginning;
the last one ends with the epoch. The sources of a window, each as often as it is due, in the order of their names, are
permuted with the key "seed/epoch/mixture" and the window's first position as tweak. The k-th sample of a source is row
k % n, in the order of its turn k // n: permuted with the turn as tweak, and the key "seed/epoch/source/name",
without the epoch where sources go on from epoch to epoch. Sources larger than a window of `feed.Window` have its order,
with the key followed by "/turn".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from keyed_order import keyed_order, window_order


def tree(weights: Sequence[float]) -> Any:
    leaves = [(Fraction(str(weight)), number) for number, weight in enumerate(weights)]

    def halved(some: list[Any]) -> Any:
        half = (len(some) + 1) // 2
        return some[0] if len(some) == 1 else (
            sum(each[0] for each in some), halved(some[:half]), halved(some[half:])
        )  # fmt: skip

    nodes, number = [(weight, at, (weight, at)) for weight, at in leaves], len(leaves)
    while len(nodes) > 1:
        nodes.sort(key=lambda node: node[:2])
        (light, _, one), (other, _, two), *nodes = nodes
        nodes.append((light + other, number, (light + other, two, one)))
        number += 1
    return min((halved(sorted(leaves, key=lambda leaf: (-leaf[0], leaf[1]))), nodes[0][2]), key=error)


def error(node: Any, own: Fraction = Fraction(0)) -> Fraction:
    if len(node) == 2:
        return own
    half = Fraction(1, 2) if all(child[0] for child in node[1:]) else Fraction(0)
    return max(error(child, own * child[0] / node[0] + half) for child in node[1:]) if node[0] else own


def counts(node: Any, q: int, found: dict[int, int]) -> dict[int, int]:
    if len(node) == 2:
        found[node[1]] = q
        return found
    left = int(q * node[1][0] / node[0] + Fraction(1, 2)) if node[0] else 0
    counts(node[1], left, found)
    return counts(node[2], q - left, found)


def mixed_rows(
    names: Sequence[str], rows: Sequence[int], weights: dict[int, Sequence[float]], n: int, seed: int, epoch: int,
    shuffle: bool | tuple[int, int] = True, go_on: Sequence[int] | None = None,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Yields (source, row) of every position of an epoch of n; `weights` by the position from which on they hold."""
    taken, key = list(go_on or [0] * len(rows)), f"{seed}" if go_on is not None else f"{seed}/{epoch}"
    orders: dict[tuple[int, int], list[int]] = {}
    window: list[int] = []
    for position in range(n):
        if position in weights:
            begin, shares = position, tree(weights[position])
        if (position - begin) % 64 == 0:
            end = min(position + 64, n)
            before, after = (counts(shares, q - begin, {}) for q in (position, end))
            due = [source for source in range(len(rows)) for _ in range(after[source] - before[source])]
            window = [due[at] for at in keyed_order(len(due), f"{seed}/{epoch}/mixture".encode(), position)]
        source = window[(position - begin) % 64]
        turn, row = divmod(taken[source], rows[source])
        taken[source] += 1
        if shuffle and (source, turn) not in orders:
            own = f"{key}/source/{names[source]}"
            if shuffle is True or rows[source] <= shuffle[0] * shuffle[1]:
                orders[source, turn] = keyed_order(rows[source], own.encode(), turn)
            else:
                orders[source, turn] = window_order(rows[source], f"{own}/{turn}".encode(), *shuffle)
        yield source, orders[source, turn][row] if shuffle else row

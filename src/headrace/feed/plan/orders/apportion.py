"""How many of the first q samples of a mixture come from each source: whole numbers near the weights, in closed form.

The sources are the leaves of a binary tree. What a node has is divided between its two children, to the nearest whole
number: the left one has floor(q * left / both + 1/2) of q samples. So the numbers add up to q, none ever becomes
smaller when q grows, and they are found for any q at once. The arithmetic is exact.

A source's number is off by at most 1/2 at the first level of the tree, and less than d / 2 at level d: under one sample
for up to four sources. Of two trees, one balanced in its depth and one in its weights, the better one is taken; `error`
is its bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple


class _Node(NamedTuple):
    weight: Fraction
    source: int  # of a leaf; -1 else
    left: _Node | None = None
    right: _Node | None = None


class Apportion:
    """See the module.

    Args:
        weights: of the sources, not negative, not all 0.

    Attributes:
        error: how many samples a source's number may be off at most.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        # As the user wrote them: 0.7 is 7/10 and not the binary fraction next to it.
        leaves = [_Node(Fraction(repr(float(weight))), source) for source, weight in enumerate(weights)]
        self._sources = len(leaves)
        trees = [_halved(sorted(leaves, key=lambda leaf: (-leaf.weight, leaf.source))), _by_weight(leaves)]
        self.error, _, self._tree = min((_error(tree, Fraction(0)), at, tree) for at, tree in enumerate(trees))

    def counts(self, samples: int) -> list[int]:
        """Returns how many of the first `samples` come from each source."""
        found = [0] * self._sources
        stack = [(self._tree, samples)]
        while stack:
            node, count = stack.pop()
            if node.left is None or node.right is None:
                found[node.source] = count
            elif count:
                ratio = node.left.weight / node.weight if node.weight else Fraction(0)
                mine = (2 * count * ratio.numerator + ratio.denominator) // (2 * ratio.denominator)
                stack += [(node.left, mine), (node.right, count - mine)]
        return found


def _both(left: _Node, right: _Node) -> _Node:
    return _Node(left.weight + right.weight, -1, left, right)


def _halved(leaves: Sequence[_Node]) -> _Node:
    if len(leaves) == 1:
        return leaves[0]
    half = (len(leaves) + 1) // 2
    return _both(_halved(leaves[:half]), _halved(leaves[half:]))


def _by_weight(leaves: Sequence[_Node]) -> _Node:
    """Joins the two lightest until one is left."""
    heap = [(leaf.weight, leaf.source, leaf) for leaf in leaves]
    heapq.heapify(heap)
    number = len(leaves)
    while len(heap) > 1:
        light, other = heapq.heappop(heap), heapq.heappop(heap)
        joined = _both(other[2], light[2])
        heapq.heappush(heap, (joined.weight, number, joined))
        number += 1
    return heap[0][2]


def _error(node: _Node, own: Fraction) -> float:
    """Returns the largest error of a leaf below a node whose own error is given."""
    if node.left is None or node.right is None or not node.weight:
        return float(own)
    found = []
    for child in (node.left, node.right):
        share = child.weight / node.weight
        rounded = Fraction(1, 2) if 0 < share < 1 else Fraction(0)
        found.append(_error(child, share * own + rounded))
    return max(found)

"""What a loader guarantees, given whose order it follows and how its ranks share the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.lane_datasets import leaves_of
from headrace.feed.plan.orders.apportion import Apportion
from headrace.feed.plan.orders.mixed_order import MixedOrder
from headrace.feed.plan.torch_samplers import SamplerSource
from headrace.feed.streams.mixed_stream import MixedStream
from headrace.feed.streams.stream import Stream

Resume = Literal[
    "at once",
    "by the sampler's state",
    "by running the sampler again",
    "by the dataset's state",
    "by replaying lanes",
    "by the dataset's state or by replaying lanes",
]
Ranks = Literal["share every global batch", "share the lanes", "each has everything", "as the sampler says"]


@dataclass(frozen=True)
class Guarantee:
    """What a loader guarantees; see the table in docs/feed.md.

    Attributes:
        exactly_once: every place of the order comes once, with the same bits, whichever workers end. False with
            ``on_error="skip"``: samples that fail are left out, and listed in `loader.skipped`. Whether the order
            itself names a row twice is another question: see `MixtureGuarantee.repeats`, and samplers with replacement.
        same_order: the order depends on seed and epoch alone, not on workers, hosts and ranks. False when a torch
            sampler decides it, with ``in_order=False``, and where ranks share lanes without `global_batch_size`:
            then it depends on how many they are. In lanes it depends on `num_shards` too, and on which shards lie
            together where hosts hold different ones.
        resume: how a position is come back to. Of a named pipeline that is read in lanes only its workers know which
            of two ways it is.
        ranks: how the ranks share the data.
        equal_steps: every rank has as many steps as the others.
    """

    exactly_once: bool
    same_order: bool
    resume: Resume
    ranks: Ranks
    equal_steps: bool


@dataclass(frozen=True)
class MixtureGuarantee(Guarantee):
    """What a loader of a mixture guarantees.

    Attributes:
        error: how many samples each source is off its weight at most, in every prefix of whole windows of 64 samples;
            in lanes, in that of each lane.
        repeats: whether rows may come more than once in the epoch under way, or else the next one, because a source is
            used up before it ends and begins again. With `set_weights`, from then on.
    """

    error: float
    repeats: bool


def guarantee_of_mixture(found: Guarantee, order: MixedOrder | None, epoch: int) -> Guarantee:
    """Returns what a loader guarantees, with what only mixtures have if `order` is one's, of the order of an epoch."""
    if order is None:
        return found
    begin, end = order.taken(epoch, 0), order.taken(epoch, order.rows(epoch))
    repeats = any(
        before % rows + taken - before > rows for before, taken, rows in zip(begin, end, order.mixing.rows, strict=True)
    )
    own = (found.exactly_once, found.same_order, found.resume, found.ranks, found.equal_steps)
    return MixtureGuarantee(*own, Apportion(order.mixing.weights).error, repeats)


def guarantee_of_lanes(dataset: Any, *, shared: bool, even: bool, slots: bool, skips: bool) -> Guarantee:
    """Returns what a loader of a dataset without a count guarantees.

    Args:
        dataset: or the `Pipeline` that makes it.
        shared: whether the ranks share the lanes.
        even: whether they have equally many steps.
        skips: whether rows that raise are left out.
        slots: whether a global batch takes of all lanes, so that it is the same for any number of ranks.
    """
    resume: Resume = "by the dataset's state or by replaying lanes"
    if not isinstance(dataset, Pipeline):
        resume = "by the dataset's state" if all(map(_has_state, leaves_of(dataset))) else "by replaying lanes"
    ranks: Ranks = "share every global batch" if slots else "share the lanes" if shared else "each has everything"
    same, equal = slots or not shared, even or not shared
    if isinstance(dataset, MixedStream):
        error = Apportion(dataset.mixing.weights).error
        return MixtureGuarantee(not skips, same, resume, ranks, equal, error, dataset.mixing.until == "all")
    return Guarantee(not skips, same, resume, ranks, equal)


def _has_state(dataset: Any) -> bool:
    return isinstance(dataset, Stream) or (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"))


def guarantee(
    source: SamplerSource | None, *, sampled: bool, shared: bool, skips: bool, exact: bool = True
) -> Guarantee:
    """Returns what a loader guarantees.

    Args:
        source: the torch sampler that decides the order, None for headrace's own order.
        sampled: whether the user gave a sampler.
        shared: whether the ranks share the data.
        skips: whether samples that fail are left out.
        exact: whether batches come in the order of the plan.
    """
    if source is None:
        own: Ranks = "share every global batch" if shared else "each has everything"
        return Guarantee(not skips, exact, "at once", own, True)
    stateful = hasattr(source.sampler, "state_dict") and hasattr(source.sampler, "load_state_dict")
    resume: Resume = "by the sampler's state" if stateful else "by running the sampler again"
    ranks: Ranks = "as the sampler says" if sampled else "each has everything"
    return Guarantee(not skips, False, resume, ranks, not sampled)

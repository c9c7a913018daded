"""Where a loader is, as a few plain numbers: what `DataLoader.state_dict()` returns.

With headrace's own order an epoch is a pure function of (seed, epoch), so the epoch and the number of its samples that
all ranks together have consumed say everything: the order is evaluated from there on, whatever the number of ranks,
workers and rows a batch. With a torch sampler, which has an order of its own, the record also holds what that sampler
needs to come to the same place (see `torch_samplers`). It never holds the order itself.

What decides the order is in the record too and must be the same in the loader that goes on from it; a difference is an
error that names it. The dictionary holds numbers, strings and None only: for JSON, `torch.save`, anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.errors import PositionError
from headrace.feed.identifiers import require_count
from headrace.feed.pipelines.factory import Pipeline, encoded
from headrace.feed.plan.orders.mixed_order import Segment


class LaneToken(NamedTuple):
    """Where a reader of a lane can be opened: before its output `at`, see `wire.draws`."""

    at: int
    token: bytes


class LaneState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the lanes of a rank are, as plain data: the part of a loader's state that only lanes have.

    It says how many outputs of each lane were consumed; that is all that a resume needs. Which lanes have ended, and
    the tokens, save the replay of what was consumed. Each rank knows its own lanes: `merge_states` puts the states of
    all ranks together, for another number of ranks.

    Attributes:
        count: lanes of the loader, over all ranks.
        taken: lane and outputs of it that were consumed.
        ended: lanes that have none left.
        tokens: lane, `LaneToken.at`, and its token in base 64.
        slots: that every global batch takes a part of, see `lane_pass`; 0 where a batch comes from one lane.
        marks: of states that an earlier headrace wrote; they are read, and mean nothing.
    """

    count: int
    taken: list[tuple[int, int]] = []
    ended: list[int] = []
    tokens: list[tuple[int, int, str]] = []
    slots: int = 0
    marks: list[tuple[int, int, str]] = []

    def __post_init__(self) -> None:
        require_count("slots", self.slots)
        for lane, taken in self.taken:
            require_count(f"taken of lane {lane}", taken)
        unknown = next(
            (lane for lane in (*(lane for lane, _ in self.taken), *self.ended) if not 0 <= lane < self.count), None
        )
        if unknown is not None:
            raise ValueError(f"lanes lie in [0, {self.count}), got {unknown}")

    def by_lane(self) -> dict[int, LaneToken]:
        """Returns the tokens by lane. Raises PositionError if one is damaged."""
        try:
            return {lane: LaneToken(at, base64.b64decode(token, validate=True)) for lane, at, token in self.tokens}
        except ValueError as error:
            raise PositionError(f"the state of the loader is damaged: {error}") from error

    def missing(self, own: Sequence[int]) -> list[int]:
        """Returns those of some lanes that it does not know."""
        return sorted(set(own) - {lane for lane, _ in self.taken})


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Puts the states of all ranks together, for `DataLoader.load_state_dict` with another number of ranks.

    Args:
        states: what `DataLoader.state_dict()` returned on every rank, after the same number of steps.

    Raises:
        PositionError: they are not of one loader, or not of one step.
    """
    if not states or any(not isinstance(state, Mapping) or "order" not in state for state in states):
        what = "none" if not states else "something else"
        raise PositionError(
            f"merge_states takes a list of what loader.state_dict() returned on every rank; it was given {what}",
            hint="save loader.state_dict() on every rank, and pass all of them: feed.merge_states([state0, state1])",
        )
    if any(not state.get("lanes") for state in states):
        raise PositionError(
            "merge_states takes the states of a loader with lanes, one of every rank",
            hint="state_dict() of a counted loader is the same on all ranks: load any of them",
        )
    first = dict(states[0])
    try:
        ranks = [msgspec.convert(state["lanes"], LaneState) for state in states]
    except msgspec.ValidationError as error:
        raise PositionError(
            f"a state of the loader is damaged: {error}", hint="merge what loader.state_dict() returned, as it was"
        ) from error
    for state, lanes in zip(states, ranks, strict=True):
        for name in ("epoch", "step", "seed", "world_size"):
            if state.get(name) != first.get(name):
                raise PositionError(
                    f"the states have {name}={first.get(name)!r} and {name}={state.get(name)!r}",
                    hint="merge the states of all ranks of one step; where only some ranks have ended their epoch "
                    "(uneven=True) there is none",
                )
        if (lanes.count, lanes.slots) != (ranks[0].count, ranks[0].slots):
            raise PositionError(
                f"the states are of {ranks[0].count} lanes in {ranks[0].slots} slots, and of {lanes.count} lanes in "
                f"{lanes.slots} slots",
                hint="merge the states of the ranks of one loader",
            )
    merged = LaneState(
        ranks[0].count,
        sorted({lane: rows for lanes in ranks for lane, rows in lanes.taken}.items()),
        sorted({lane for lanes in ranks for lane in lanes.ended}),
        sorted(token for lanes in ranks for token in lanes.tokens),
        ranks[0].slots,
    )
    if merged.taken and (lost := merged.missing(range(merged.count))):
        raise PositionError(f"no state knows lane {lost[0]}", "merge the states of all ranks")
    return first | {"lanes": msgspec.to_builtins(merged)}


VERSION = 1
MAX_WINDOW = 256  # batches, of which the first that is there is taken; which of them were taken must fit into a state
_NAME_LIMIT = 120

_HINTS = {
    "order": "build the loader as it was: with or without seed, sampler, batch_sampler, lanes (num_shards, .filter)",
    "length": "the position counts samples of that dataset; start a new epoch on another: loader.set_epoch(epoch + 1)",
    "shards": "the shards have the same number of rows and are others, or have other names, or are packed or mixed "
    "in another way, or (in lanes) other ones of them lie together on a host: give the loader those of before, as they "
    'lay; to go on with these on purpose, set state["shards"] = ""',
    "seed": "give the loader seed={saved}, that of the run that is resumed",
    "shuffle": "give the loader the same shuffle as in the run that is resumed",
    "window": "give the loader the same shuffle=feed.Window(run, runs) as in the run that is resumed",
    "buckets": "give the loader the same buckets=feed.Buckets(..., batches=) as in the run that is resumed",
    "lengths": "give the loader the same lengths as in the run that is resumed",
    "mixture": "give the loader the same mixture, with the weights that it began with; other weights for what lies "
    "ahead follow them: weights=[(0, {{...}}), (samples, {{...}})]",
    "drop_last": "give the loader the same drop_last as in the run that is resumed",
    "num_shards": "give the loader num_shards={saved}: lanes decide what the batches hold, so their number stays for "
    "an epoch; num_workers may change. Without num_shards= it is num_workers times the ranks. To go on with another "
    "number, begin an epoch: load_state_dict({{}}) and set_epoch(epoch + 1)",
    "pipeline": 'to go on with another pipeline on purpose, set state["pipeline"] = ""',
}


_UNKNOWN = {"length": 0, "seed": None, "pipeline": "", "shards": "", "mixture": "", "lengths": ""}


class SamplerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a torch sampler needs to come to a position.

    Attributes:
        drawn: the seed that a `RandomSampler` without a generator drew for the pass.
        generator: state of the sampler's generator when the pass began, packed.
        sampler: the sampler's own `state_dict()`.
        iterator: that of its iterator.
        behind: keys (of a `batch_sampler`: batches) that `sampler` and `iterator` lag behind the position.
        ended: the pass is over: the sampler stands at its end.
        undrawn: of states that an earlier headrace wrote; it is read, and means nothing.
    """

    drawn: int | None = None
    generator: str = ""
    sampler: Any = None
    iterator: Any = None
    behind: int = 0
    ended: bool = False
    undrawn: int = 0


class TakenAhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches that one rank was given before their turn; see `order` of the loader.

    Attributes:
        batches: see `packed_steps`.
        rank: whose.
    """

    batches: str
    rank: int


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A place in an epoch, and what decides the epoch's order.

    Attributes:
        epoch: number of the epoch.
        step: batches of the epoch that were handed out, each on every rank.
        samples: samples of the epoch that were consumed: over all ranks with headrace's own order, by this loader with
            a torch sampler.
        order: whose order it is.
        shuffle, drop_last: of the loader.
        length: samples in the dataset; 0 when it is not known.
        seed: seed of order and random numbers; None when it is not drawn yet.
        global_batch, world_size: rows of a step over all ranks, and ranks, as they were; they may change.
        pipeline: name and hash of the pipeline; empty for a dataset object.
        sampler: see `SamplerState`.
        window: rows of a run and runs of a window of a shuffle by windows; None for another order.
        num_shards, lanes: of a dataset without a count; see `LaneState`.
        shards: digest of the shards' names, rows, sizes and some of their bytes; empty when it is not known.
        ahead: batches after `step` that this rank was given already; None when there are none.
        mixture: names and weights of a mixture, as the user gave them; empty without one, or when it is not known.
        weights: what the rows before the position follow from, where weights change; see `WeightSchedule`.
        buckets, lengths: what the windows of `buckets` are, and a digest of the lengths; empty without.
        bucket_rows: rows of the global batches that the epoch is bucketed by.
        version: of this record.
    """

    epoch: int
    step: int
    samples: int
    order: Literal["headrace", "torch", "lanes"]
    shuffle: bool
    drop_last: bool
    length: int = 0
    seed: int | None = None
    global_batch: int = 0
    world_size: int = 1
    pipeline: str = ""
    sampler: SamplerState | None = None
    window: tuple[int, int] | None = None
    shards: str = ""
    num_shards: int = 0
    lanes: LaneState | None = None
    ahead: TakenAhead | None = None
    mixture: str = ""
    weights: list[Segment] = []
    buckets: str = ""
    lengths: str = ""
    bucket_rows: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        for name in ("epoch", "step", "samples", "length", "global_batch"):
            require_count(name, getattr(self, name))
        if self.ahead is not None:
            unpacked_steps(self.step, self.ahead.batches)
        if self.order == "headrace" and self.length and self.samples > self.length and not self.mixture:
            raise ValueError(f"samples must lie in [0, {self.length}], got {self.samples}")
        if self.order == "headrace" and self.step > self.samples:
            raise ValueError(f"step must lie in [0, {self.samples}], the samples of these batches, got {self.step}")

    @property
    def taken_ahead(self) -> frozenset[int]:
        """Numbers of the batches after `step` that were handed out."""
        return unpacked_steps(self.step, self.ahead.batches) if self.ahead is not None else frozenset()

    @property
    def at_end(self) -> bool:
        """Whether it is known that nothing is left of the epoch."""
        if self.lanes is not None:
            return bool(self.lanes.taken) and {lane for lane, _ in self.lanes.taken} <= set(self.lanes.ended)
        least = self.global_batch if self.drop_last else 1
        return bool(self.length) and not self.mixture and self.length - self.samples < least

    def require_same_cut(self, batch: int, world_size: int, rank: int) -> None:
        """Raises PositionError if batches were handed out before their turn, and the loader's are not the same ones.

        Args:
            batch: rows of a step over all ranks.
            world_size, rank: of the loader.
        """
        if self.ahead is None:
            return
        for name, mine, its in (
            ("rank", self.ahead.rank, rank),
            ("world_size", self.world_size, world_size),
            ("global_batch", self.global_batch, batch),
        ):
            if mine != its:
                raise PositionError(
                    f"the state holds batches that a rank was given before their turn; it was saved with "
                    f"{name}={mine}, the loader has {name}={its}",
                    "with in_order=False save the state on every rank, and go on with as many ranks and rows; or save "
                    "at the end of an epoch, or use in_order=True",
                )

    def to_state(self) -> dict[str, Any]:
        """Returns the record as plain data."""
        state: dict[str, Any] = msgspec.to_builtins(self)
        return state | {"version": self.version}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Position:
        """Reads what `to_state` returned.

        Raises:
            PositionError: it is something else, or of another version.
        """
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != VERSION:
            seen = f"version {version!r}" if isinstance(version, int) else f"{str(state)[:80]!r}"
            raise PositionError(
                f"this is not the state of a headrace DataLoader of version {VERSION}: {seen}",
                hint="pass what loader.state_dict() returned, saved and loaded as it was",
            )
        try:
            return msgspec.convert(dict(state), cls)
        except (msgspec.ValidationError, ValueError) as error:
            raise PositionError(
                f"the state of the loader is damaged: {error}",
                hint="pass what loader.state_dict() returned, saved and loaded as it was",
            ) from error

    def require_fits(self, loader: Position) -> None:
        """Compares with a position of the loader that continues from here.

        Args:
            loader: its length, seed and pipeline count only if they are known there.

        Raises:
            PositionError: names the field, both values, and what to do.
        """
        for name, hint in _HINTS.items():
            mine, its = getattr(self, name), getattr(loader, name)
            unknown = name in _UNKNOWN and _UNKNOWN[name] in (mine, its)
            if mine != its and not unknown:
                raise PositionError(
                    f"the state was saved with {name}={mine!r}, the loader has {name}={its!r}",
                    hint.format(saved=mine),
                )


def pipeline_name(dataset: object) -> str:
    """Returns a short name that differs when a pipeline or its arguments differ; empty for a dataset object."""
    if not isinstance(dataset, Pipeline):
        return ""
    digest = hashlib.blake2b(encoded(dataset).encode(), digest_size=8, person=b"pipeline").hexdigest()
    return f"{dataset.factory[-_NAME_LIMIT:]} {digest}"


def packed_steps(step: int, ahead: Iterable[int]) -> str:
    """Returns the batches behind a step as a hexadecimal number: bit i stands for batch step + 1 + i."""
    return format(sum(1 << (number - step - 1) for number in ahead), "x")


def unpacked_steps(step: int, packed: str) -> frozenset[int]:
    """Returns the batches of `packed_steps`. Raises ValueError if it is none."""
    bits = int(packed, 16)
    if not 0 < bits < 1 << MAX_WINDOW:
        raise ValueError(f"batches that were taken before their turn must be a number of at most {MAX_WINDOW} bits")
    return frozenset(step + 1 + i for i in range(bits.bit_length()) if bits >> i & 1)

"""Where the lanes of a rank are, as plain data: the part of a loader's state that only lanes have.

It says how many outputs of each lane were consumed; that is all that a resume needs. Which lanes have ended, and the
tokens, save the replay of what was consumed. Each rank knows its own lanes: `merge_states` puts the states of all ranks
together, for another number of ranks.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.errors import PositionError
from headrace.feed.identifiers import require_count


class LaneToken(NamedTuple):
    """Where a reader of a lane can be opened: before its output `at`, see `wire.draws`."""

    at: int
    token: bytes


class LaneState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """See the module.

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

    @classmethod
    def of(
        cls,
        count: int,
        taken: Mapping[int, int],
        ended: Sequence[int],
        tokens: Mapping[int, LaneToken],
        slots: int,
    ) -> LaneState:
        """Makes the record of dicts by lane."""
        written = [(lane, at, base64.b64encode(token).decode()) for lane, (at, token) in sorted(tokens.items())]
        return cls(count, sorted(taken.items()), sorted(ended), written, slots)

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
        given = "none" if not states else "something else"
        raise PositionError(
            f"merge_states takes a list of what loader.state_dict() returned on every rank; it was given {given}",
            hint="save loader.state_dict() on every rank, and pass all of them: feed.merge_states([state0, state1])",
        )
    if any(not state.get("lanes") for state in states):
        raise PositionError(
            "merge_states takes the states of a loader with lanes, one of every rank",
            hint="state_dict() of a counted loader is the same on all ranks: load any of them",
        )
    first = dict(states[0])
    try:
        found = [msgspec.convert(state["lanes"], LaneState) for state in states]
    except msgspec.ValidationError as error:
        raise PositionError(
            f"a state of the loader is damaged: {error}", hint="merge what loader.state_dict() returned, as it was"
        ) from error
    for state, lanes in zip(states, found, strict=True):
        for name in ("epoch", "step", "seed", "world_size"):
            if state.get(name) != first.get(name):
                raise PositionError(
                    f"the states have {name}={first.get(name)!r} and {name}={state.get(name)!r}",
                    hint="merge the states of all ranks of one step; where only some ranks have ended their epoch "
                    "(uneven=True) there is none",
                )
        if (lanes.count, lanes.slots) != (found[0].count, found[0].slots):
            raise PositionError(
                f"the states are of {found[0].count} lanes in {found[0].slots} slots, and of {lanes.count} lanes in "
                f"{lanes.slots} slots",
                hint="merge the states of the ranks of one loader",
            )
    merged = LaneState(
        found[0].count,
        sorted({lane: rows for lanes in found for lane, rows in lanes.taken}.items()),
        sorted({lane for lanes in found for lane in lanes.ended}),
        sorted(token for lanes in found for token in lanes.tokens),
        found[0].slots,
    )
    if merged.taken and (lost := merged.missing(range(merged.count))):
        raise PositionError(f"no state knows lane {lost[0]}", "merge the states of all ranks")
    return first | {"lanes": msgspec.to_builtins(merged)}

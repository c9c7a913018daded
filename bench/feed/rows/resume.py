"""Resume at step 1,000,000 of a billion samples: `load_state_dict`, `iter`, and the first batch.

The dataset gives its index and there are no workers, so what is timed is to find the place in the order. The state is
that of a loader some steps into its epoch, with the step set to a million: to walk there would take minutes.
"""

from __future__ import annotations

import json
import time
from typing import Any

from bench.feed.figures import Figure, Records
from bench.feed.measure import Bench
from bench.feed.settings import Settings

from headrace import feed

TITLE = "Resume at step 1,000,000 (keyed permutation)"
SAMPLES, ROWS, STEP = 1_000_000_000, 64, 1_000_000
TAKEN = 5


class Indices:
    """A billion samples that cost nothing."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def loader() -> Any:
    """Returns a fresh loader."""
    return feed.DataLoader(Indices(), batch_size=ROWS, shuffle=True, seed=7)


def moved(state: Any, later: Any) -> Any:
    """Returns a state with every number that counts steps (`TAKEN`, and one more a step later) set to `STEP`."""
    if isinstance(state, dict):
        return {key: moved(item, later[key]) for key, item in state.items()}
    if isinstance(state, (list, tuple)):
        return [moved(item, other) for item, other in zip(state, later, strict=True)]
    return STEP if (state, later) == (TAKEN, TAKEN + 1) else state


def state_at_step() -> dict[str, Any]:
    """Returns the state of a loader at `STEP`."""
    source = loader()
    batches = iter(source)
    for _ in range(TAKEN):
        next(batches)
    before = source.state_dict()
    next(batches)
    after = source.state_dict()
    found: dict[str, Any] = moved(before, after)
    if found == before:
        raise ValueError(f"no step in the state {before}")
    return found


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    if not hasattr(feed.DataLoader, "load_state_dict"):
        bench.keep("", "headrace", 0, error="this version has no load_state_dict")
        return
    state = state_at_step()
    told = json.dumps({"step": STEP, "samples": SAMPLES, "state_bytes": len(json.dumps(state))})
    for repeat in range(bench.effort.repeats):
        fresh = loader()
        begun = time.perf_counter()
        fresh.load_state_dict(state)
        batch = next(iter(fresh))
        seconds = time.perf_counter() - begun
        if len(batch) != ROWS:
            raise ValueError(f"a batch of {len(batch)}")
        bench.keep("", "headrace", repeat, batches=1, bytes=int(batch.nbytes), seconds=seconds, settings=told)


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    return [
        records.value(
            "load_state_dict to the first batch", "headrace", lambda r: r.seconds * 1e3, " ms", target=50, better="less"
        )
    ]

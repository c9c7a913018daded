"""Resume at step 1,000,000 of a billion samples: `load_state_dict`, `iter`, and the first batch.

The dataset gives its index and there are no workers, so what is timed is to find the place in the order. The state is
that of a loader some steps into its epoch, moved to a million: to walk there would take minutes. That a moved state is
right is checked at a step that can be walked to.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from bench.feed.figures import Figure, Records
from bench.feed.measure import Bench
from bench.feed.settings import Settings

from headrace import feed

TITLE = "Resume at step 1,000,000 (keyed permutation)"
SAMPLES, ROWS, STEP = 1_000_000_000, 64, 1_000_000
TAKEN, CHECKED = 5, 300


class Indices:
    """A billion samples that cost nothing."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def loader() -> Any:
    """Returns a fresh loader."""
    return feed.DataLoader(Indices(), batch_size=ROWS, shuffle=True, seed=7)


def moved(state: Any, later: Any, steps: int) -> Any:
    """Returns a state `steps` on: what grew from `state` to `later`, which is one step on, grows that often."""
    if isinstance(state, dict):
        return {key: moved(item, later[key], steps) for key, item in state.items()}
    if isinstance(state, int) and not isinstance(state, bool):
        return state + steps * (later - state)
    return state


def state_at(step: int) -> dict[str, Any]:
    """Returns the state of a loader at a step."""
    source = loader()
    batches = iter(source)
    for _ in range(TAKEN):
        next(batches)
    before = source.state_dict()
    next(batches)
    found: dict[str, Any] = moved(before, source.state_dict(), step - TAKEN)
    return found


def check() -> None:
    """Raises unless a state that was moved leads where walking does."""
    resumed = loader()
    resumed.load_state_dict(state_at(CHECKED))
    walked = next(itertools.islice(loader(), CHECKED, None))
    if not (next(iter(resumed)) == walked).all():
        raise ValueError(f"the state for step {CHECKED} leads to another batch: {state_at(CHECKED)}")


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    if not hasattr(feed.DataLoader, "load_state_dict"):
        bench.keep("", "headrace", 0, error="this version has no load_state_dict")
        return
    check()
    state = state_at(STEP)
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

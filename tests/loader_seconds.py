"""Records of a loader, as a rank writes one a second."""

from __future__ import annotations

from headrace.runs import LoaderSecond


def loader_second(t: float, **changes: object) -> LoaderSecond:
    """A second of ten steps of a tenth of it, with ten samples each; `changes` of its fields."""
    usual = {"loader": "train", "epoch": 0, "steps": 10, "samples": 100, "wait": 0.0, "step": 1.0}
    return LoaderSecond(t=t, **{**usual, "step_min": 0.1, "step_max": 0.1, "bytes": 0, **changes})  # type: ignore[arg-type]

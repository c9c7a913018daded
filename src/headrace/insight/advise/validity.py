"""Whether the model may be believed about a run: it must explain the step of the run's own cluster. Pure."""

from __future__ import annotations

from headrace.insight.advise.measured_inputs import Measured
from headrace.insight.performance_model import Range
from headrace.insight.verdicts.decide import Verdict
from headrace.insight.verdicts.thresholds import VerdictName

MISSED = 0.25
"""From this distance of the measured step from the predicted one of the same cluster on, the model does not explain
the run: `make bench-advise` has missed no configuration by so much."""


def explains(step: Range, predicted: float) -> bool:
    """Returns whether the model explains a run: it misses its step by less than MISSED, or by less than its seconds
    differ.

    Args:
        step: as measured, with the 10th and 90th percentile of its per-second values.
        predicted: of the same cluster.
    """
    return abs(step.value / predicted - 1) < MISSED or step.low <= predicted <= step.high


def first_of_all(verdict: Verdict | None) -> str:
    """Returns what has to be mended before data hosts are thought of, in sentences; empty when nothing has."""
    if verdict is not None and verdict.crowded:
        return (
            f"It cannot be told whether CPU hosts would help, because {verdict.crowded}. Run it again while nothing "
            "else runs there."
        )
    if verdict is None or not (verdict.workers_idle or verdict.name in (VerdictName.SKEWED, VerdictName.STALLED)):
        return ""
    why = "a wait for the workers" if verdict.workers_idle else "equal ranks whose steps do not stop"
    return (
        f"First mend what the verdict names: {verdict.sentence}. Next: {verdict.next}. What data hosts would bring "
        f"cannot be told before: the model knows {why}."
    )


def likely(measured: Measured, step: float, predicted: float) -> str:
    """Returns what a model that does not explain a run has probably missed, and what to do, in sentences."""
    if step < predicted:
        return "The run was faster than its measured costs allow: they are not those of its usual steps; run longer"
    if not measured.workers_told:
        return (
            "Its loader is another library's, which does not tell how its samples are made: probably they wait (for a "
            "disk, a network), or the loader has no workers (`num_workers=0`) and makes batches in the rank's own "
            "process, in turn with computing. Give it workers, or use headrace.feed.DataLoader, which measures this; "
            "`headrace doctor` tells how many workers are needed"
        )
    return (
        "The rest is neither computing, nor the work of data workers, nor a full network: probably batches are asked "
        "for late (the way there and back, the rank's own Python; many small batches), or other programs use the same "
        "machine"
    )

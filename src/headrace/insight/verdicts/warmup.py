"""What a verdict says of times that do not stand for the job. Pure.

A warm-up was long, because a step stood still in the first second, and the figures leave it out; or other programs had
the cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.insight.figures.figure import WARM_UP_RECORDS
from headrace.insight.verdicts.decide import Verdict
from headrace.insight.verdicts.thresholds import LONG_WARM_UP, NEXT_CROWDED, VerdictName
from headrace.runs import LoaderSecond, Stream

_MOST = 50.0  # % of a run's step time: from here on the figures speak of its smaller part


class WarmUp(msgspec.Struct, frozen=True):
    """The warm-up of the rank that was held up longest in it.

    Attributes:
        rank: ``group/host[rank]``.
        steps: steps in the record that is left out as warm-up.
        seconds: how long they lasted.
        longest: seconds of the longest of them.
        share: % of the time of all steps of that rank.
    """

    rank: str
    steps: int
    seconds: float
    longest: float
    share: float

    def __str__(self) -> str:
        return (
            f"the warm-up, which is left out, lasted {self.seconds:.1f} s on {self.rank}, {self.share:.0f} % of the "
            f"time of all its steps: {self.steps} steps, one of them of {self.longest:.1f} s"
        )


def long_warm_up(ranks: Mapping[Stream, Sequence[LoaderSecond]]) -> WarmUp | None:
    """Returns the warm-up of a loader if it was long enough to be mentioned, see `LONG_WARM_UP`.

    Args:
        ranks: records of the loader, by rank.

    Returns:
        That of the rank where it lasted longest; None if it was as short as usual.
    """
    found = []
    for stream, records in ranks.items():
        left, whole = records[:WARM_UP_RECORDS], sum(second.step for second in records)
        seconds = sum(second.step for second in left)
        if seconds > LONG_WARM_UP and 100 * seconds > LONG_WARM_UP * whole:
            longest = max(second.step_max for second in left)
            steps = sum(second.steps for second in left)
            found.append(WarmUp(str(stream), steps, seconds, longest, 100 * seconds / whole))
    return max(found, key=lambda one: one.seconds, default=None)


def with_warm_up(found: Verdict, left: WarmUp | None) -> Verdict:
    """Returns a verdict that mentions a long warm-up: in its notes, and in its sentence if that was most of the run."""
    if left is None:
        return found
    more = f"; but {left}" if left.share >= _MOST else ""
    return msgspec.structs.replace(found, sentence=found.sentence + more, notes=(*found.notes, str(left)))


def with_others(found: Verdict, crowd: str) -> Verdict:
    """Returns a verdict that says first of all that its times are not those of the job alone.

    Args:
        found: as the times would have it.
        crowd: see `headrace.insight.verdicts.evidence.crowded`; empty for a job that had its cores.
    """
    if not crowd or found.name is VerdictName.STALLED:
        return found
    sentence = f"{found.sentence}; but {crowd}"
    return msgspec.structs.replace(found, sentence=sentence, next=NEXT_CROWDED, crowded=crowd)

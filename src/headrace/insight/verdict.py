"""What limits a job: its input, its network, its own computing, one rank, nothing, or a standstill. Pure.

The signals are waits, at both ends of the data path. A trainer that waits in `next()` lacks batches; data workers
that have no room or no work have batches to spare; between them is a link that is busy or is not. How busy a GPU or a
CPU looks is weak evidence (NVML counts a period in which any kernel ran at all), so it is used only where no wait was
measured, and the verdict is then said to be `inferred`.

The rules, tried in this order; `headrace.insight.evidence` has the reason of every number:

    1  no step for STALL_SECONDS and STALL_STEPS of the longest step, or ended as it stood still   stalled
    2  fewer than LEAST_RECORDS records of the loader:  by GPU and CPU use (inferred), else        unknown
    3  one rank (or the ranks of one host) waits SKEW_GAP more than the others, which do not wait  skewed
    4  data wait >= NOT_BOUND, link >= LINK_BUSY and busier than the data workers                  network-bound
    5  data wait >= NOT_BOUND                                                                      input-bound
    6  no wait, one rank computes STRAGGLER times as long as the median of the others              skewed
    7  no wait, and the data workers have less than SPARE to spare                                 balanced
    8  no wait, no device time; batches made on the ranks' hosts at an unknown cost, which
       are CROWDED % busy, short of cores (but not at rest), or not measured                        unknown
    9  no wait                                                                                     compute-bound

Rule 8: a pipeline that works in threads of the trainer itself, on cores that have no time to spare, does not make
`next()` block. It makes the step longer, so that the wait does not tell it from computing. Ranks that use less than
RESTING % of a core each are at rest: they neither compute nor make batches, and what they wait for is no data.

More wait with all else equal never moves a job from input-bound or network-bound to compute-bound or balanced. Busier
hosts, of ranks that have their cores, never move one from unknown to compute-bound.

Times that do not stand for the job (a warm-up, another load of the machine) are said with the verdict.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from headrace.insight.evidence import (
    CPU_BUSY,
    CROWDED,
    GPU_BUSY,
    GPU_LOW,
    HIGHLY_BOUND,
    LEAST_RECORDS,
    LINK_BUSY,
    LONG_WARM_UP,
    NEXT,
    NEXT_APART,
    NEXT_CROWDED,
    NEXT_IDLE,
    NEXT_MISSING,
    NEXT_NOT_STARTED,
    NEXT_UNUSED,
    NOT_BOUND,
    RESTING,
    SKEW_GAP,
    SPARE,
    STALL_SECONDS,
    STALL_STEPS,
    STRAGGLER,
    Silence,
    Usage,
    VerdictInputs,
    VerdictName,
    band_of,
)
from headrace.insight.figures.columns import COMPUTE, DATA_WAIT, H2D, STEP_TIME, Quantity, Table, total
from headrace.insight.figures.figure import WARM_UP_RECORDS, Figure, Window, figure_of, missing
from headrace.insight.figures.loaders import Ranks
from headrace.runs import Stream

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


def long_warm_up(ranks: Ranks) -> WarmUp | None:
    """Returns the warm-up of a loader if it was long enough to be mentioned, see `LONG_WARM_UP`.

    Args:
        ranks: rows of the loader, by rank.

    Returns:
        That of the rank where it lasted longest; None if it was as short as usual.
    """
    found = []
    for stream, rank in ranks.items():
        left = rank.where(slice(WARM_UP_RECORDS))
        seconds, whole = total([left["step"]]), total([rank["step"]])
        if seconds > LONG_WARM_UP and 100 * seconds > LONG_WARM_UP * whole:
            steps, longest = int(left["steps"].sum()), left["step_max"].max().item()
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
        crowd: see `headrace.insight.evidence.crowded`; empty for a job that had its cores.
    """
    if not crowd or found.name is VerdictName.STALLED:
        return found
    sentence = f"{found.sentence}; but {crowd}"
    return msgspec.structs.replace(found, sentence=sentence, next=NEXT_CROWDED, crowded=crowd)


_UNUSED = "; the data workers made no sample: the loader does not use them"
_NOT_MEASURED = "what the data workers did was not measured"
_NOT_TOLD = "TensorFlow does not tell how its workers spend their time, only what CPU they use was measured"


class Verdict(msgspec.Struct, frozen=True):
    """What limits a job.

    Attributes:
        name: the verdict.
        sentence: what was seen, in one sentence with its numbers.
        next: what to do about it.
        band: ``not``, ``moderately`` or ``highly`` input-bound; empty where no waits are known or they do
            not tell.
        rank: ``group/host[rank]`` (or ``group/host``) that is skewed, or the quietest of a standstill; else empty.
        inferred: it rests on how busy devices looked, not on waits.
        workers_idle: the ranks wait for batches although the data workers have time to spare: more would not help.
        evidence: the figures that decided, each with its window and, where the steps allow one, its confidence range.
        window: where they were measured.
        formula: the rule that applied, with its thresholds.
        crowded: which host lost its cores to programs that are none of the run's, in words; empty if none did.
        notes: what else to know, e.g. that the confidence range crosses a threshold.
    """

    name: VerdictName
    sentence: str
    next: str
    band: str = ""
    rank: str = ""
    inferred: bool = False
    workers_idle: bool = False
    evidence: tuple[Figure, ...] = ()
    window: Window | None = None
    formula: str = ""
    notes: tuple[str, ...] = ()
    crowded: str = ""


def verdict(found: VerdictInputs) -> Verdict:
    """Decides what limits a job; the module's docstring has the rules.

    >>> verdict(VerdictInputs(usage=Usage(gpu=45.0, cpu=99.0, cpu_of="dnn_group"))).name.value
    'input-bound'
    """
    if found.not_started:
        sentence, rule = f"unknown: {found.not_started}", "no program has started"
        return Verdict(VerdictName.UNKNOWN, sentence, NEXT_NOT_STARTED, formula=rule)
    if found.silence is not None and (halt := _stalled(found.silence, found.window)) is not None:
        return halt
    ranks = {stream: rank for stream, rank in found.ranks.items() if rank["step"].any()}
    if sum(map(len, ranks.values())) < LEAST_RECORDS:
        return _inferred(found.usage, found.window)
    facts = _Facts(ranks, found)
    return _apart(facts) or _waiting(facts) or _straggler(facts) or _untold(facts) or _not_waiting(facts)


def _told(quantity: Quantity, tables: list[Table]) -> list[Table]:
    """Returns the tables if all of their rows have it."""
    return tables if all(len(quantity.rows(table).t) == len(table) for table in tables) else []


class _Facts:
    """The figures of a job with waits.

    Args:
        ranks: at least one, each with a step time.
        found: what they and all else come from.
    """

    def __init__(self, ranks: Ranks, found: VerdictInputs) -> None:
        self.unmeasured = _NOT_TOLD if found.servers else _NOT_MEASURED
        self.ranks, self.supply, self.beside, self.window = ranks, found.supply, found.beside, found.window
        self.unused = found.supply is not None and found.beside is not None  # data workers, and they made no batch
        self.idle = found.supply is not None and not self.unused and found.supply.produce < LINK_BUSY
        tables = list(ranks.values())
        self.wait = DATA_WAIT._replace(spread=False).figure(tables, found.window, "")
        self.wait_share = self.wait.value or 0.0
        self.h2d, self.compute = (
            quantity._replace(spread=False).figure(_told(quantity, tables), found.window, "not measured")
            for quantity in (H2D, COMPUTE)
        )

    def evidence(self, *more: Figure) -> tuple[Figure, ...]:
        """Returns the figures that were measured, the data wait first."""
        figures = [self.wait, *more, *(one for one in (self.h2d, self.compute) if one.value is not None)]
        if self.supply is not None:
            names = {"produce": self.supply.produce, "blocked": self.supply.blocked, "idle": self.supply.idle}
            figures += [figure_of(name, value, self.window) for name, value in names.items()]
            if self.supply.link is not None:
                figures.append(figure_of("link", self.supply.link, self.window))
        return tuple(figures)

    def waits(self) -> str:
        """Returns the data wait in words."""
        known = self.wait.confidence
        return f"{self.wait_share:.1f} %" + (f" (95 %: {known.low:.1f} .. {known.high:.1f})" if known else "")

    def verdict(
        self,
        name: VerdictName,
        sentence: str,
        formula: str,
        *,
        band: str = "",
        rank: str = "",
        more: Sequence[Figure] = (),
        notes: Sequence[str] = (),
    ) -> Verdict:
        """Returns a verdict with the evidence; `band` is that of the data wait unless it is given."""
        idle = name is VerdictName.INPUT_BOUND and self.idle
        unused = name is VerdictName.INPUT_BOUND and self.unused
        return Verdict(
            name,
            f"{name.value}: {sentence}",
            NEXT_IDLE if idle else NEXT_UNUSED if unused else NEXT[name],
            workers_idle=idle,
            band=band or band_of(self.wait_share),
            rank=rank,
            evidence=self.evidence(*more),
            window=self.window,
            formula=formula,
            notes=(*self._notes(), *notes),
        )

    def _notes(self) -> list[str]:
        """Returns the notes that do not depend on the verdict."""
        known, notes = self.wait.confidence, []
        if known is None:
            notes.append("too few independent seconds for a confidence range of the data wait")
        else:
            notes += [
                f"the data wait's range crosses {limit:g} %: a longer run may change the verdict"
                for limit in (NOT_BOUND, HIGHLY_BOUND)
                if known.low < limit <= known.high
            ]
        if self.h2d.value is not None and self.h2d.value >= NOT_BOUND:
            notes.append(
                f"copies to the device take {self.h2d.value:.1f} % of the step: pinned memory and a copy of the next "
                "batch while this one is worked on hide them"
            )
        return notes


def _stalled(silence: Silence, window: Window | None) -> Verdict | None:
    limit = max(STALL_SECONDS, STALL_STEPS * silence.longest_step)
    if not silence.cause and (silence.seconds is None or silence.seconds < limit):
        return None
    if silence.seconds is None:
        evidence, seen = missing("silence", "no step was ever seen"), "no step was ever seen"
    else:
        evidence = figure_of("silence", silence.seconds, window)
        seen = f"no step has ended for {silence.seconds:.0f} s; the longest so far took {silence.longest_step:.2f} s"
    where = f"; the quietest rank is {silence.rank}" if silence.rank else ""
    where += f"; the job waited for {silence.missing}" if silence.missing else ""
    rule = "because it waited for a lost server of tf.data.service" if silence.missing else "by stall_after"
    return Verdict(
        VerdictName.STALLED,
        f"stalled: {seen}{where}",
        NEXT_MISSING if silence.missing else NEXT[VerdictName.STALLED],
        rank=silence.rank,
        evidence=(evidence,),
        window=window,
        formula=(
            f"the run was ended {rule}"
            if silence.cause
            else f"silence >= max({STALL_SECONDS:g} s, {STALL_STEPS:g} * longest step) = {limit:.0f} s"
        ),
        notes=(silence.cause,) if silence.cause else ("saving or testing without a measured loader looks the same",),
    )


_LEVELS: tuple[Callable[[Stream], str], ...] = (str, lambda stream: f"{stream.group}/{stream.host}")
"""A rank, and all ranks of its host."""


def _apart(facts: _Facts) -> Verdict | None:
    """One rank waits, or the ranks of one host do, and the others do not."""
    if facts.wait_share == 0:
        return None
    for level in _LEVELS:
        parts: dict[str, list[Table]] = {}
        for stream, rank in facts.ranks.items():
            parts.setdefault(level(stream), []).append(rank)
        if len(parts) < 2:
            continue
        waits = {place: DATA_WAIT.of(ranks) or 0.0 for place, ranks in parts.items()}
        worst = max(waits, key=lambda place: waits[place])
        rest = DATA_WAIT.of(rank for place, ranks in parts.items() if place != worst for rank in ranks) or 0.0
        if waits[worst] >= NOT_BOUND > rest and waits[worst] - rest >= SKEW_GAP:
            return facts.verdict(
                VerdictName.SKEWED,
                f"{worst} waits {waits[worst]:.1f} % of its step time for batches, the others {rest:.1f} %",
                f"data_wait of {worst} >= {NOT_BOUND:g} %, of the others < {NOT_BOUND:g} %, "
                f"difference >= {SKEW_GAP:g} points",
                band=band_of(waits[worst]),
                rank=worst,
                more=(
                    figure_of("data_wait_of_worst", waits[worst], facts.window, note=worst),
                    figure_of("data_wait_of_others", rest, facts.window),
                ),
            )
    return None


def _waiting(facts: _Facts) -> Verdict | None:
    """The trainer waits: finds the busiest stage of the data path."""
    if facts.wait_share < NOT_BOUND:
        return None
    band, supply = band_of(facts.wait_share), facts.supply
    notes: list[str] = []
    formula = f"data_wait >= {HIGHLY_BOUND if band == 'highly' else NOT_BOUND:g} % ({band} input-bound)"
    waits = f"the ranks wait {facts.waits()} of their step time for batches"
    if supply is not None and supply.link is not None and supply.link >= LINK_BUSY and supply.link > supply.produce:
        name = VerdictName.NETWORK_BOUND
        sentence = f"{waits}; the link is busy {supply.link:.0f} % of the time, the data workers {supply.produce:.0f} %"
        formula += f", link >= {LINK_BUSY:g} % and link > produce"
    else:
        name = VerdictName.INPUT_BOUND
        sentence = waits
        if supply is None:
            notes.append(f"{facts.unmeasured}: disk and network are not told from CPU")
        else:
            sentence += (
                _UNUSED
                if facts.unused
                else f"; the data workers make samples only {supply.produce:.0f} % of the time and no link is busy: "
                "batches are asked for too late or taken in too slowly"
                if facts.idle
                else f"; the data workers make samples {supply.produce:.0f} % of the time"
            )
            if supply.link is not None:
                formula += f", not (link >= {LINK_BUSY:g} % and link > produce)"
    return facts.verdict(name, sentence, formula, notes=notes)


def _straggler(facts: _Facts) -> Verdict | None:
    """No rank waits for batches; one rank needs longer for a step."""
    known = {}
    for stream, rank in facts.ranks.items():
        left = "rest" if _told(H2D, [rank]) else "no_wait"
        own = left if facts.compute.value is None else "compute"
        known[str(stream)] = STEP_TIME._replace(over=own, scale=1).of([rank])
    times = {place: taken for place, taken in known.items() if taken is not None}
    if len(times) < 2:
        return None
    worst = max(times, key=lambda place: times[place])
    rest = statistics.median(taken for place, taken in times.items() if place != worst)
    if not 0 < rest * STRAGGLER <= times[worst]:
        return None
    return facts.verdict(
        VerdictName.SKEWED,
        f"{worst} computes {1000 * times[worst]:.1f} ms a step, the median of the others {1000 * rest:.1f} ms",
        f"data_wait < {NOT_BOUND:g} %, compute of {worst} >= {STRAGGLER:g} * the median of the others",
        rank=worst,
        more=(
            figure_of("compute_of_worst", 1000 * times[worst], facts.window, note=worst),
            figure_of("compute_of_others", 1000 * rest, facts.window),
        ),
    )


def _untold(facts: _Facts) -> Verdict | None:
    """No rank waits, but making batches may be what makes the steps long."""
    beside = facts.beside
    if beside is None or facts.compute.value is not None or beside.spare:
        return None
    cpu = () if beside.cpu is None else (figure_of("cpu", beside.cpu, facts.window, note=beside.host),)
    if beside.cpu is None:
        use, rule = "whose CPU use is not known", "not measured"
    elif beside.short:
        use = (
            f"where they had {beside.cpu:.0f} % of the cores: less than a core each, as if other programs had the rest"
        )
        rule = f"{RESTING:g} to {CROWDED:g} % of a core a rank, without GPUs"
    else:
        use, rule = f"{beside.cpu:.0f} % of whose cores is busy", f">= {CROWDED:g} %"
    found = facts.verdict(
        VerdictName.UNKNOWN,
        f"the ranks wait only {facts.waits()} of their step time for batches, but these are made on their own host "
        f"({beside.host}), {use}: computing and making batches cannot be told apart",
        f"data_wait < {NOT_BOUND:g} %; no device time, no data workers that tell their work, and cpu of a host that "
        f"trains {rule}",
        more=cpu,
        notes=(
            "a loader that works in the ranks' own processes, or beside them on the same cores, makes steps longer "
            "instead of making next() wait",
        ),
    )
    return msgspec.structs.replace(found, next=NEXT_APART, band="")


def _not_waiting(facts: _Facts) -> Verdict:
    supply = facts.supply
    notes: list[str] = []
    formula = f"data_wait < {NOT_BOUND:g} %"
    sentence = f"the ranks wait only {facts.waits()} of their step time for batches"
    more: tuple[Figure, ...] = ()
    name = VerdictName.COMPUTE_BOUND
    if supply is None:
        notes.append(f"{facts.unmeasured}: how much they have to spare is unknown")
    else:
        sentence += _UNUSED if facts.unused else f"; the data workers have {supply.spare:.0f} % of their time to spare"
        if supply.spare < SPARE:
            name = VerdictName.BALANCED
        formula += f", blocked + idle {'<' if name is VerdictName.BALANCED else '>='} {SPARE:g} %"
    if facts.beside is not None and facts.beside.resting and facts.compute.value is None:
        sentence += (
            f", and hardly compute on the CPU ({facts.beside.cpu:.1f} % of the cores of {facts.beside.host}): what "
            "they wait for is a device, a sleep or a lock"
        )
        more = (figure_of("cpu", facts.beside.cpu, facts.window, note=facts.beside.host),)
    if facts.compute.value is not None and facts.compute.value < 100 - HIGHLY_BOUND:
        notes.append(
            f"the device works only {facts.compute.value:.0f} % of the step: the rest is the loop's own, in Python, "
            "copies or waiting for other ranks"
        )
    return facts.verdict(name, sentence, formula, more=more, notes=notes)


def _inferred(usage: Usage | None, window: Window | None) -> Verdict:
    """Decides by how busy devices looked."""
    if usage is None or usage.gpu is None or usage.cpu is None:
        return Verdict(
            VerdictName.UNKNOWN,
            f"unknown: fewer than {LEAST_RECORDS} seconds of loader metrics after the warm-up",
            NEXT[VerdictName.UNKNOWN],
            window=window,
            formula=f"fewer than {LEAST_RECORDS} records of the main loader; no GPU use and CPU use to infer from",
        )
    of = f" of {usage.cpu_of}" if usage.cpu_of else ""
    seen = f"GPU use is {usage.gpu:.0f} %, CPU use{of} {usage.cpu:.0f} %"
    if usage.gpu < GPU_LOW and usage.cpu >= CPU_BUSY:
        name, why = VerdictName.INPUT_BOUND, "the GPUs are under-used while the CPUs are saturated"
        formula = f"gpu_use < {GPU_LOW:g} % and cpu >= {CPU_BUSY:g} %"
    elif usage.gpu < GPU_LOW:
        name, why = VerdictName.UNKNOWN, "neither is saturated, and what the job waits for does not show in either"
        formula = f"gpu_use < {GPU_LOW:g} % and cpu < {CPU_BUSY:g} %"
    elif usage.gpu >= GPU_BUSY and usage.cpu < CPU_BUSY:
        name, why = VerdictName.COMPUTE_BOUND, "the GPUs are saturated and the CPUs are not"
        formula = f"gpu_use >= {GPU_BUSY:g} % and cpu < {CPU_BUSY:g} %"
    else:
        name, why = VerdictName.BALANCED, "the GPUs are well used, and the CPUs have no more to spare than they"
        formula = f"gpu_use >= {GPU_LOW:g} %, not (gpu_use >= {GPU_BUSY:g} % and cpu < {CPU_BUSY:g} %)"
    return Verdict(
        name,
        f"{name.value} (inferred): {seen}: {why}",
        NEXT[name],
        inferred=True,
        evidence=(
            figure_of("gpu_use", usage.gpu, window),
            figure_of("cpu", usage.cpu, window, note=usage.cpu_of),
        ),
        window=window,
        formula=formula,
        notes=("no waits were measured: how busy a GPU or a CPU looks is a weak witness",),
    )

"""A figure: a number with its unit, its window, its formula, its spread, and the noise of the steps in it. Pure.

A figure that was not measured has the value None and a note that says why. It is never 0.

Noise says how far a figure may be from its true mean, and whether two figures differ beyond it.
The values of neighbouring seconds resemble each other (caches, other programs on the machine, long and short batches),
so `n` of them hold less than `n` independent values, and a test that ignores this calls chance a difference. The
method, of which nothing is random:

    1  a figure is a ratio of sums, R = sum(over) / sum(under); its deviation in second i is d_i = over_i - R * under_i
    2  more than MOST_VALUES seconds are averaged to MOST_VALUES blocks of neighbours, so a slow drift counts as noise
    3  r = (n * r1 + 1) / (n - 3), the lag-1 autocorrelation r1 of d with its small-sample bias (Kendall 1954) taken
       off, cut to 0 .. 0.95
    4  n_eff = n * (1 - r) / (1 + r) independent values, those of a first-order autoregressive series
    5  error = sqrt(sum(d^2) / (n - n / n_eff) / n_eff) / mean(under), with n_eff - 1 degrees of freedom
    6  there is no range with fewer than LEAST_FREEDOM degrees of freedom: such an error is a guess from one difference
    7  range = R -+ t95(n_eff - 1) * error, never below 0 where no value is
    8  two figures differ if |a - b| > t95(v) * sqrt(error_a^2 + error_b^2), with Welch's degrees of freedom v; figures
       a second are compared by their reciprocals, so samples/s, step time and the costs that follow agree

It knows the noise inside a run. How much two runs of the same job differ as a whole (another machine, other neighbours,
a cold cache) only repeats can tell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

WARM_UP_RECORDS = 1
"""Metric records (about one second each) left out at the start of every loader: workers start, caches are cold."""


class Declared(NamedTuple):
    """What is known of a figure before it is measured.

    Attributes:
        unit: as of `Figure`.
        title: what it is called where people read it.
        formula: how it is computed.
    """

    unit: str
    title: str
    formula: str


FIGURES: dict[str, Declared] = {
    "time_to_train": Declared("s", "time to train", "exit of the last program of the completion groups - job_started "
        "(all hosts registered and told to start their programs); only for a run that has completed"),
    "steps": Declared("1", "steps", "steps counted by the loader, whole run, warm-up included; of all ranks: those of "
        "the rank that did most"),
    "samples": Declared("1", "samples", "samples in these steps, whole run, warm-up included"),
    "step_time": Declared("ms", "step time", "1000 * sum(step) / sum(steps); a step lasts from one next() call to "
        "the following one of the same epoch; of all ranks together: 1000 * the greatest sum(step) of a rank / the "
        "greatest sum(steps) of a rank: the slowest decides"),
    "samples_per_second": Declared("1/s", "samples/s", "sum(samples) / sum(step); of all ranks together: their samples "
        "/ the greatest sum(step) of a rank; time between epochs is not counted"),
    "data_wait": Declared("%", "data wait", "100 * sum(wait) / sum(step), where wait is the time blocked in next()"),
    "h2d": Declared("%", "copies to device", "100 * sum(h2d) / sum(step): time in which the feed's copies to the "
        "device ran (CUDA events on their stream); they run beside the computation, so wait, h2d and compute may add "
        "up to more than the step"),
    "compute": Declared("%", "compute", "100 * sum(compute) / sum(step), compute being the device's time from the "
        "batch's arrival to the end of the work that was submitted before the following next() (CUDA events); without "
        "CUDA: 100 * (step - wait - h2d) / step"),
    "queue": Declared("1", "queue", "mean number of batches that were ready when next() was called, weighted by steps"),
    "supply": Declared("1/s", "supply an executor", "sum(samples) / sum(produce): samples a second of one executor "
        "while it works, never blocked, never idle"),
    "produce": Declared("%", "produce", "100 * executor seconds spent on making samples / (executors * seconds)"),
    "blocked": Declared("%", "blocked", "100 * executor seconds without a slice while results wait to be sent, or work "
        "waits for memory, / (executors * seconds)"),
    "idle": Declared("%", "idle", "100 * executor seconds in which nobody asked / (executors * seconds)"),
    "worker_cpu": Declared("s", "CPU of 1,000 samples", "1000 * CPU seconds (user + system) of the executors / "
        "samples"),
    "bytes_per_sample": Declared("bytes", "a sample", "payload bytes of the executors' results / samples"),
    "link": Declared("%", "link", "100 * seconds in which a host's busiest connection was sending / seconds, mean over "
        "the hosts"),
    "bandwidth": Declared("bytes/s", "bandwidth", "bytes that a data host sent / seconds in which its busiest "
        "connection was sending"),
    "server_cpu": Declared("%", "CPU of one core", "100 * CPU seconds (user + system) of a tf.data server between its "
        "records / seconds between them: 100 % is one core; the time from a start to its first record is left out"),
    "server_rss": Declared("bytes", "max RSS", "largest resident bytes of a tf.data server"),
    "server_sent": Declared("bytes/s", "sent to trainers", "bytes that a tf.data worker sent to trainers between its "
        "records / seconds between them; TCP's headers, and the time from a start to its first count, are left out"),
    "cpu": Declared("%", "CPU", "100 * CPU seconds (user + system) of all processes of the group's hosts / (seconds * "
        "cores that these hosts may use); 100 % means that all its own cores were busy"),
    "others": Declared("%", "CPU of others", "100 * CPU seconds of the cores that the group's hosts may use which went "
        "to programs that are none of the run's, of this machine or (steal) of others of its hypervisor / (seconds * "
        "these cores)"),
    "cpu_per_1000_samples": Declared("s", "CPU per 1,000 samples", "1000 * CPU seconds a second of the group's hosts / "
        "samples a second"),
    "max_rss": Declared("bytes", "max RSS", "largest sum of resident bytes over the processes of one host of the "
        "group, whole run"),
    "memory": Declared("%", "memory used", "largest 100 * bytes in use / bytes that the host may use, over the hosts "
        "and seconds of the whole run; in use: private and shared memory in the host's control group, each page once, "
        "without the cache of files; without a control group: the sum of resident bytes of its processes"),
    "network_received": Declared("bytes/s", "network in", "growth of the bytes received by all network devices of a "
        "host but loopback / seconds, added over the hosts"),
    "network_sent": Declared("bytes/s", "network out", "the same of the bytes sent"),
    "disk_read": Declared("bytes/s", "disk read", "growth of the bytes that a host's processes had read from disks "
        "(not from the cache) / seconds, added over the hosts; read_bytes of /proc/PID/io, of processes that ended "
        "too"),
    "disk_written": Declared("bytes/s", "disk written", "the same of the bytes for disks, counted when a page is "
        "changed (write_bytes)"),
    "gpu_use": Declared("%", "GPU", "mean share of the time in which a kernel ran on a GPU (NVML), every GPU by "
        "itself, then over the GPUs; one busy multiprocessor counts as much as all"),
    "gpu_memory": Declared("%", "gpu memory", "largest 100 * bytes in use / bytes of one GPU (NVML), over the GPUs and "
        "seconds of the whole run"),
    "gpu_power": Declared("W", "gpu power", "mean power of every GPU (NVML), added over the GPUs; one that hosts share "
        "counts for each"),
    "value_count": Declared("1", "found", "values that a metric definition's regex found in the programs' lines, whole "
        "run"),
    "value_last": Declared("", "last", "the last of them"),
    "value_min": Declared("", "least", "the least of them"),
    "value_max": Declared("", "greatest", "the greatest of them"),
    "value_mean": Declared("", "mean", "their sum / their count; spread: of the means of seconds"),
    "data_wait_of_worst": Declared("%", "data wait of the worst", "data_wait of the rank (or of the ranks of the host) "
        "that waits most"),
    "data_wait_of_others": Declared("%", "data wait of the others", "data_wait of all other ranks together"),
    "compute_of_worst": Declared("ms", "compute of the slowest", "sum(compute) / sum(steps) of the slowest rank; "
        "without CUDA events compute = step - wait - h2d"),
    "compute_of_others": Declared("ms", "compute of the others", "median of that figure over the other ranks"),
    "silence": Declared("s", "without a step", "now, or the end of the run - end of the last record of any loader"),
    "platform_cpu": Declared("%", "platform cpu", "mean of the platform's minutes / number of CPUs: it adds them up; "
        "idle time is in them"),
    "platform_memory": Declared("%", "platform memory", "greatest of the platform's minutes"),
    "platform_gpu_use": Declared("%", "platform gpu use", "mean of the platform's minutes / number of GPUs: it adds "
        "them up"),
    "platform_gpu_memory": Declared("%", "platform gpu memory", "greatest of the platform's minutes / number of GPUs"),
    "platform_disk": Declared("%", "platform disk", "greatest of the platform's minutes"),
    "billable_seconds": Declared("s", "billable seconds", "seconds from instances_started to the release of the host, "
        "else to the end of the run, else to now; all attempts; of a group: added over its hosts"),
    "cost": Declared("USD", "cost to train", "price * billable_seconds / 3600, added over the hosts; price is the list "
        "price of the named instance type"),
    "cost_per_hour": Declared("USD/hour", "price an hour", "sum over the hosts of price * seconds that the host ran "
        "within the training window / seconds of this window"),
    "cost_per_step": Declared("USD", "cost of a step", "cost_per_hour * step_time / 1000 / 3600; a step is one step of "
        "all ranks together"),
    "cost_per_1000_samples": Declared("USD", "cost of 1,000 samples", "cost_per_hour * (1000 / samples_per_second) / "
        "3600; time between epochs is not counted"),
    "cost_per_epoch": Declared("USD", "cost of an epoch", "mean over the epochs that have ended, the first one left "
        "out as warm-up when there are more, of cost_of_epoch"),
    "cost_of_epoch": Declared("USD", "cost of epoch", "price an hour of the hosts that ran, averaged from the first "
        "record of the epoch to its last, * sum(step) of the epoch (the greatest of the ranks) / 3600; time between "
        "epochs is not counted"),
    "cost_platform": Declared("USD", "on the platform", "sum of the prices of all instances * BillableTimeInSeconds / "
        "3600, where BillableTimeInSeconds is the time from instances_started to the end of the run, rounded up to 1 "
        "s: the platform releases no instance early"),
    "projected_per_hour": Declared("USD/hour", "projected per hour", "sum over all instances of the list price of "
        "their type, while all of them run"),
    "projected_maximum": Declared("USD", "projected maximum", "projected_per_hour * max_run / 3600: every instance for "
        "all of max_run, no host released early; saving and collecting after a stop come on top"),
    "projected_budget_time": Declared("s", "projected budget time", "max_cost / projected_per_hour * 3600: seconds "
        "that the budget lasts while all run"),
    "cores_busy": Declared("cores", "cores busy", "CPU seconds of all processes / seconds, added over hosts or "
        "servers"),
    "disk": Declared("%", "disk", "mean share of a host's disk that is in use"),
}  # fmt: skip
"""Every figure by its name, declared here alone."""

FORMULAS: dict[str, str] = {
    **{name: declared.formula for name, declared in FIGURES.items()},
    "verdict": "the rule that applied is `verdict.formula`; all rules in their order: the page verdicts of the docs",
    "confidence": (
        "95 % range of the true mean: value -+ t95(n_eff - 1) * error, where n_eff is the number of per-second values "
        "reduced for their lag-1 autocorrelation; the page verdicts of the docs has the whole of it"
    ),
    "spread": "10th to 90th percentile of the per-second values in the window",
    "window": (
        f"training window: the first {WARM_UP_RECORDS} metric record of every loader and rank (about one second) is "
        "left out as warm-up; without loader metrics: from job_started to the last program's exit"
    ),
}
"""How every figure is computed, by its name."""


class Window(msgspec.Struct, frozen=True):
    """Stretch of time in which a figure was measured, seconds since the epoch, UTC."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


class Spread(msgspec.Struct, frozen=True):
    """How the per-second values lie around a figure.

    Attributes:
        low: 10th percentile.
        high: 90th percentile.
        count: how many values.
    """

    low: float
    high: float
    count: int


class Confidence(msgspec.Struct, frozen=True):
    """How far the noise of the steps may have moved a figure from its true mean; see `headrace.insight.figures.figure`.

    Attributes:
        low, high: the true mean lies between them with 95 % confidence.
        error: standard error of the figure, in its unit.
        freedom: degrees of freedom of that error: how many independent values it rests on, less one.
    """

    low: float
    high: float
    error: float
    freedom: float


class Figure(msgspec.Struct, frozen=True):
    """One measured number.

    Attributes:
        name: which figure it is; `FORMULAS` says how it is computed.
        unit: ``s``, ``ms``, ``1/s``, ``%``, ``bytes``, ``bytes/s``, ``W``, ``USD``, ``USD/hour``, ``1`` for a count;
            empty for a value of a metric definition, which has the unit that the program meant.
        value: the number, None if it was not measured.
        window: where it was measured; None when there is no value.
        spread: of the per-second values, None when there are fewer than two.
        note: why there is no value, or what to know about it.
        confidence: range of its true mean; None when there are too few independent values to tell.
    """

    name: str
    unit: str
    value: float | None
    window: Window | None = None
    spread: Spread | None = None
    note: str = ""
    confidence: Confidence | None = None


def figure_of(
    name: str,
    value: float | None,
    window: Window | None = None,
    spread: Spread | None = None,
    note: str = "",
    confidence: Confidence | None = None,
) -> Figure:
    """Returns a figure of `FIGURES`, in its unit."""
    return Figure(name, FIGURES[name].unit, value, window, spread, note, confidence)


def missing(name: str, note: str, unit: str | None = None) -> Figure:
    """Returns a figure without a value, and why. `unit`: of one that `FIGURES` does not have."""
    return Figure(name, FIGURES[name].unit if unit is None else unit, None, note=note)


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile with linear interpolation between the nearest values.

    >>> percentile([1.0, 2.0, 3.0], 50)
    2.0
    """
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def spread_of(values: Sequence[float]) -> Spread | None:
    """Returns the spread of per-second values; None when there are fewer than two."""
    if len(values) < 2:
        return None
    return Spread(percentile(values, 10), percentile(values, 90), len(values))


LEAST_VALUES = 8
"""Seconds below which there is no range: the autocorrelation of fewer values is unknown."""

LEAST_FREEDOM = 2.0
"""Degrees of freedom below which there is no range: with one it is 12.7 errors wide, and the error is unknown."""

MOST_VALUES = 40
"""Blocks to which longer series are averaged."""

_SAME = 1e-9
"""Relative difference that sums of floating-point numbers show by themselves."""

_MOST_CORRELATED = 0.95

# Student's t, 97.5th percentile, for 1 to 30 degrees of freedom: Abramowitz and Stegun, table 26.10.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.960


def t95(freedom: float) -> float:
    """Returns how many standard errors hold 95 %, two-sided; between the table's rows linear in 1 / freedom.

    >>> t95(10), round(t95(1e9), 3)
    (2.228, 1.96)
    """
    last = len(_T95)
    if freedom <= 1:
        return _T95[0]
    if freedom >= last:
        return _NORMAL + (_T95[-1] - _NORMAL) * last / freedom
    below = int(freedom)
    part = (1 / below - 1 / freedom) / (1 / below - 1 / (below + 1))
    return _T95[below - 1] + (_T95[below] - _T95[below - 1]) * part


def confidence_of_ratio(over: Sequence[float], under: Sequence[float], *, scale: float = 1.0) -> Confidence | None:
    """Returns the confidence range of scale * sum(over) / sum(under).

    Args:
        over, under: per-second values in the order of time, e.g. seconds waited and seconds of steps.
        scale: e.g. 100 for %.

    Returns:
        The range; None with fewer than LEAST_VALUES seconds, with fewer than LEAST_FREEDOM degrees of freedom, or when
        `under` sums to nothing.
    """
    count, total = len(over), sum(under)
    if count < LEAST_VALUES or total <= 0:
        return None
    value = sum(over) / total
    found = _blocks([a - value * b for a, b in zip(over, under, strict=True)])
    # What only the rounding of floating-point numbers makes has no autocorrelation that means anything.
    rounding = max(map(abs, found)) <= _SAME * abs(total * value) / count
    independent = float(len(found)) if rounding else _independent(found)
    if independent - 1 < LEAST_FREEDOM:
        return None
    squares = math.fsum(d * d for d in found)
    error = math.sqrt(squares / (len(found) - len(found) / independent) / independent) / (total / count)
    reach = t95(independent - 1) * error
    low = max(0.0, value - reach) if min(over) >= 0 else value - reach
    return Confidence(scale * low, scale * (value + reach), scale * error, independent - 1)


def added(series: Iterable[Sequence[float]]) -> list[float]:
    """Returns the sums of the n-th values of several series, up to the end of the longest.

    Ranks that wait for each other have their n-th seconds together. Of those that do not, one ends later, and its last
    seconds belong to every sum over all ranks as much as the first.

    >>> added([[1.0, 2.0], [10.0, 20.0, 30.0]])
    [11.0, 22.0, 30.0]
    """
    return [math.fsum(row) for row in itertools.zip_longest(*series, fillvalue=0.0)]


def share_range(part: Iterable[Sequence[float]], whole: Iterable[Sequence[float]], share: float) -> Confidence | None:
    """Returns the confidence range of 100 * sum(part) / sum(whole) over several series, in %.

    Args:
        part, whole: per-second values of each series.
        share: that figure, as it was computed: in another order, so that it may differ by rounding; the range holds it.
    """
    known = confidence_of_ratio(added(part), added(whole), scale=100)
    return (
        None if known is None else Confidence(min(known.low, share), max(known.high, share), known.error, known.freedom)
    )


def _blocks(values: list[float]) -> list[float]:
    """Averages neighbours to at most MOST_VALUES values."""
    count = len(values)
    if count <= MOST_VALUES:
        return values
    edges = [count * index // MOST_VALUES for index in range(MOST_VALUES + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _independent(deviations: list[float]) -> float:
    """Returns how many independent values these are worth."""
    count = len(deviations)
    squares = math.fsum(d * d for d in deviations)
    found = math.fsum(a * b for a, b in itertools.pairwise(deviations)) / squares
    correlated = min(max((count * found + 1) / (count - 3), 0.0), _MOST_CORRELATED)
    return count * (1 - correlated) / (1 + correlated)


def as_noisy(value: float, source: float, known: Confidence | None) -> Confidence | None:
    """Returns the confidence range of a figure that is a constant times another one, or a constant divided by it.

    Args:
        value: the figure.
        source: the figure that it follows from, e.g. the step time of a step's cost.
        known: the range of `source`.

    Returns:
        The range, which has the relative error of `source` and does not cross 0.
    """
    if known is None or source == 0:
        return None
    error = abs(value / source) * known.error
    reach = t95(known.freedom) * error
    low, high = value - reach, value + reach
    return Confidence(
        max(0.0, low) if value >= 0 else low, high if value >= 0 else min(0.0, high), error, known.freedom
    )


def differ(a: float, known_a: Confidence, b: float, known_b: Confidence) -> bool:
    """Returns whether two independent figures differ beyond their noise, with 95 % confidence."""
    first, second = known_a.error**2, known_b.error**2
    both = first + second
    if abs(a - b) <= _SAME * max(abs(a), abs(b)):
        return False
    if both == 0:
        return True
    freedom = both**2 / (first**2 / known_a.freedom + second**2 / known_b.freedom)
    return abs(a - b) > t95(freedom) * math.sqrt(both)

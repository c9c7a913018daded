"""Figures in words: a title, a number with its unit, its spread, its confidence range."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.catalog.prices import Price
from headrace.exit_status import short_exit_text
from headrace.insight.billing import amount
from headrace.insight.figures.figure import FIGURES, Figure
from headrace.runs import Status

if TYPE_CHECKING:
    from headrace.insight.run_report import ProgramReport

MISSING = "-"

HOW = (
    "rates leave out the first second of every loader; [a .. b]: 10th to 90th percentile of the seconds; "
    "formulas: --output json"
)


def title(name: str, group: str = "") -> str:
    """Returns what a figure is called."""
    known = FIGURES.get(name)
    return (name.replace("_", " ") if known is None else known.title) + (f" of {group}" if group else "")


def number(figure: Figure) -> str:
    """Returns a value with its unit; ``-`` when it was not measured."""
    return MISSING if figure.value is None else quantity(figure.value, figure.unit)


def quantity(value: float, unit: str) -> str:
    """Returns a value with its unit.

    >>> quantity(191.96, "ms"), quantity(3 * 2**20, "bytes"), quantity(0.00126, "USD"), quantity(12.0, "1")
    ('192.0 ms', '3 MiB', '0.00126 USD', '12')
    """
    if unit.startswith("bytes"):
        return size_text(value) + unit.removeprefix("bytes")
    if unit.startswith("USD"):
        return f"{amount(value)} {unit}"
    if unit == "1":
        return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
    if not unit:  # as the program printed it
        return f"{value:.6g}"
    return f"{value:.{_places(value)}f}{'' if unit == '1/s' else ' ' + unit}"


def size_text(value: float) -> str:
    """Returns a number of bytes in words.

    >>> size_text(812), size_text(10.67), size_text(1234567)
    ('812 B', '10.7 B', '1 MiB')
    """
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            return f"{value / size:.{1 if value < 10 * size and name != 'MiB' else 0}f} {name}"
    return f"{value:.{0 if value == int(value) else 1}f} B"


def spread(figure: Figure) -> str:
    """Returns the spread of a figure, e.g. ``[9.8 .. 10.4]``; empty without one."""
    if figure.spread is None:
        return ""
    return f"[{_bare(figure.spread.low, figure)} .. {_bare(figure.spread.high, figure)}]"


def confidence(figure: Figure) -> str:
    """Returns the 95 % range of a figure, e.g. ``9.8 .. 10.4``; empty without one."""
    known = figure.confidence
    return "" if known is None else f"{_bare(known.low, figure)} .. {_bare(known.high, figure)}"


def _bare(value: float, figure: Figure) -> str:
    if figure.unit.startswith("USD"):
        return amount(max(value, 0.0))
    return f"{value:.{_places(figure.value or 0.0)}f}"


def _places(value: float) -> int:
    return 1 if abs(value) >= 10 else 2


def listed(price: Price | None) -> str:
    """Returns a list price and its unit."""
    return MISSING if price is None else f"{price.price:g} {price.unit}"


def ending(program: ProgramReport, *, going_on: bool) -> str:
    """Returns how a program ended. `going_on`: the run does."""
    if program.exit_code is None and program.signal is None:
        return "running" if going_on else "no exit seen"
    how = short_exit_text(program.exit_code, program.signal)
    return f"{how} (stopped)" if program.stopped else how


def standing(status: Status, degraded: bool) -> str:
    """Returns how a run stands."""
    return status.value + (" (degraded)" if degraded else "")


def moment(seconds: float) -> str:
    """Formats a time in UTC.

    >>> moment(0)
    '1970-01-01 00:00:00'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def clock(seconds: float, digits: int = 0) -> str:
    """Formats the time of a day, UTC, cut to so many digits of a second.

    >>> clock(1.29), clock(1.29, 1)
    ('00:00:01', '00:00:01.2')
    """
    fraction = f".{int(seconds % 1 * 10**digits):0{digits}d}" if digits else ""
    return moment(seconds)[11:] + fraction


def duration(seconds: float) -> str:
    """Formats a duration.

    >>> duration(4.25), duration(75), duration(3723)
    ('4.2 s', '1:15', '1:02:03')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""headrace's own log: the standard `logging` module, one logger a module, all below the logger `headrace`.

Imported as a library headrace sets up nothing: its records go to the handlers of the application. $HEADRACE_LOG sends
them to standard error instead:

    HEADRACE_LOG=info                        from this level on: debug, info, warning or error
    HEADRACE_LOG=headrace.feed=debug,info    the same, and another level for one logger and those below it

The variable is inherited, so it holds for every process of a job. An agent writes its records into its log of the run
(`log_to`). Standard library only: every training process imports this when the variable is set.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping

VARIABLE = "HEADRACE_LOG"
PACKAGE = "headrace"
LEVELS: Mapping[str, int] = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
_changed: set[str] = set()  # loggers whose level was set here


def parse_levels(text: str) -> dict[str, int]:
    """Returns the level of each logger that a text like that of $HEADRACE_LOG names.

    >>> parse_levels("headrace.feed=debug,info")
    {'headrace.feed': 10, 'headrace': 20}

    Raises:
        ValueError: a part is no level, or names a logger that is none of headrace's.
    """
    levels: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, level = part.rpartition("=")
        name = name.strip() or PACKAGE
        number = LEVELS.get(level.strip().lower())
        if number is None or name.partition(".")[0] != PACKAGE:
            raise ValueError(
                f"{VARIABLE}: {part!r} is not understood; write one of {', '.join(LEVELS)}, "
                f"or LOGGER=LEVEL with a logger like {PACKAGE}.feed"
            )
        levels[name] = number
    return levels


def log_to(handler: logging.Handler, levels: Mapping[str, int]) -> None:
    """Sends headrace's records to one handler and nowhere else.

    Args:
        handler: takes the place of an earlier one.
        levels: by logger; what is not named has that of the logger above it, `headrace` itself WARNING.
    """
    package = logging.getLogger(PACKAGE)
    for name in _changed:
        logging.getLogger(name).setLevel(logging.NOTSET)
    _changed.clear()
    for name, level in {PACKAGE: logging.WARNING, **levels}.items():
        logging.getLogger(name).setLevel(level)
        _changed.add(name)
    package.handlers = [handler]
    package.propagate = False


def log_to_stderr(text: str) -> None:
    """Sends headrace's records to standard error.

    Args:
        text: the levels, see `parse_levels`. When they are not understood a warning says so, and nothing below a
            warning is shown: a wrong variable does not end a training.
    """
    handler = logging.StreamHandler(sys.stderr)
    form = logging.Formatter("%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s")
    form.converter = time.gmtime
    form.default_time_format, form.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    handler.setFormatter(form)
    try:
        log_to(handler, parse_levels(text))
    except ValueError as error:
        log_to(handler, {})
        logging.getLogger(PACKAGE).warning("%s", error)


def tell_user(text: str) -> None:
    """Says something to whoever starts a run, on standard error: what a log would keep from him."""
    print(f"headrace: {text}", file=sys.stderr, flush=True)


def levels_of_environment(at_least: int) -> dict[str, int]:
    """Returns the levels of $HEADRACE_LOG for a log that has all records from a level on anyway.

    Args:
        at_least: that level; the variable can only add to it.
    """
    try:
        levels = parse_levels(os.environ.get(VARIABLE, ""))
    except ValueError:  # told when headrace was imported
        levels = {}
    return {PACKAGE: at_least} | {name: min(level, at_least) for name, level in levels.items()}

"""Finds an engine by its name: an entry point of the group ``headrace.engines``, so that anyone can add one.

    [project.entry-points."headrace.engines"]
    local = "headrace.engines.local.engine"

The entry point names an object with the functions of `headrace.engines`: an engine, or a module that has them, or one
that has the engine as `ENGINE`. A job knows no engine; this is how it reaches the one that it is given.
"""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points

from headrace.errors import EngineRefused

GROUP = "headrace.engines"


def engine_names() -> tuple[str, ...]:
    """Returns the names of all installed engines, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def find_engine(name: str, function: str = "") -> object:
    """Returns the engine of that name; it is imported now.

    Args:
        name: as in `headrace run --engine NAME`.
        function: what it must have; nothing if empty.

    Raises:
        EngineRefused: no such engine is installed, it cannot be imported, or it does not have the function.
    """
    points = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not points:
        names = ", ".join(engine_names())
        near = difflib.get_close_matches(name, engine_names(), n=1)
        advice = f"did you mean {near[0]}?" if near else "another one comes with a package: install that"
        choices = f"there is: {names}; {advice}"
        hint = choices if names else "headrace is not installed in this Python, only found on its path: pip install it"
        raise EngineRefused(f"no engine is called {name!r}", hint=hint)
    if len(points) > 1:
        raise EngineRefused(
            f"{len(points)} engines are called {name!r}: {', '.join(sorted(points))}",
            hint="uninstall the package of one of them",
        )
    (point,) = points.values()
    engine = _load(point)
    if function and not callable(getattr(engine, function, None)):
        raise EngineRefused(
            f"the engine {name!r} ({point.value}) has no function {function}",
            hint="the page own-engine of the docs says which functions an engine has",
        )
    return engine


def _load(point: EntryPoint) -> object:
    try:
        loaded = point.load()
    except (ImportError, AttributeError) as error:
        raise EngineRefused(
            f"the engine {point.name!r} ({point.value}) cannot be imported: {error}", hint="install what it needs"
        ) from error
    return getattr(loaded, "ENGINE", loaded)

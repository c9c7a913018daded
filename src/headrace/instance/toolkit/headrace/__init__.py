"""The name `headrace` for programs whose Python does not have it: it leads to the package that started the job.

So no folder with other packages of that Python has to stand in a program's PYTHONPATH. Where the program's own Python,
requirements or code have a `headrace`, that one is taken. What `headrace` imports is never brought along.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).resolve().parent.parent
_OURS = _HERE.parent.parent


def _take_real() -> None:
    elsewhere = [entry for entry in sys.path if os.path.realpath(entry or ".") != str(_HERE)]
    spec = PathFinder.find_spec(__name__, elsewhere) or importlib.util.spec_from_file_location(
        __name__, _OURS / "__init__.py", submodule_search_locations=[str(_OURS)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package {__name__} in {elsewhere} or {_OURS}", name=__name__)
    real = importlib.util.module_from_spec(spec)
    sys.modules[__name__] = real
    spec.loader.exec_module(real)


_take_real()

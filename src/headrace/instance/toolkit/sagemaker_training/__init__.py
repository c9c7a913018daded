"""Stands in for SageMaker's training toolkit where that is not installed. See `headrace.instance.toolkit`.

PYTHONPATH comes before site-packages, so this package is found first. It looks further, and steps aside when the real
one is there.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent.parent)


def _step_aside() -> None:
    elsewhere = [entry for entry in sys.path if os.path.realpath(entry or ".") != _HERE]
    spec = PathFinder.find_spec(__name__, elsewhere)
    if spec is None or spec.loader is None:
        return
    real = importlib.util.module_from_spec(spec)
    sys.modules[__name__] = real
    spec.loader.exec_module(real)


_step_aside()

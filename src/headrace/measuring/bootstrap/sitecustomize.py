"""Loads the probe of `headrace doctor` into a Python process that was started with this folder in PYTHONPATH.

Python imports `sitecustomize` at its start. This one loads the probe's modules from their files under their own names
(headrace itself is not imported; it need not be installed, or may be another version), removes its folder from
sys.path, and runs the `sitecustomize` that Python would have found without it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SHARED = (
    "feed/batch/tensors",
    "feed/metrics/step_timing",
    "feed/identifiers",
    "control_group",
)  # the probe uses them too
_PROBE = tuple(f"measuring/{module}" for module in ("facts", "watch"))


def _name(path: str) -> str:
    return f"headrace.{path.replace('/', '.')}"


def _load_probe() -> None:
    for path in (*_SHARED, *_PROBE):  # each imports those before it
        full = _name(path)
        spec = importlib.util.spec_from_file_location(full, _HERE.parent.parent / f"{path}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    for path in _SHARED:
        del sys.modules[_name(path)]  # a headrace that the script imports finds its own
    sys.modules["headrace.measuring.watch"].install()


def _run_the_one_behind() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if not entry or Path(os.path.realpath(entry)) != _HERE]
try:
    _load_probe()
except Exception as error:  # noqa: BLE001 - the user's script must run, measured or not
    print(f"headrace doctor: this process is not measured: {type(error).__name__}: {error}", file=sys.stderr)
_run_the_one_behind()

"""Loads the probe of `headrace doctor` into a Python process that was started with this folder in PYTHONPATH.

Python imports `sitecustomize` at its start. This one loads the probe's modules from their files under their own names
(headrace itself is not imported and need not be installed), removes its folder from sys.path, and runs the
`sitecustomize` that Python would have found without it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PROBE = ("spool", "facts", "batches", "watch", "hooks")  # each imports those before it


def _load_probe() -> None:
    for name in _PROBE:
        full = f"headrace.feed.profiler.{name}"
        spec = importlib.util.spec_from_file_location(full, _HERE.parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    sys.modules["headrace.feed.profiler.hooks"].install()


def _run_the_one_behind() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
try:
    _load_probe()
except Exception as error:  # noqa: BLE001 - the user's script must run, measured or not
    print(f"headrace doctor: this process is not measured: {type(error).__name__}: {error}", file=sys.stderr)
_run_the_one_behind()

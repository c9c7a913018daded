"""What the probe patches: DataLoader classes, as soon as the script imports them, and torch's fetchers in workers.

A finder in front of `sys.meta_path` waits for a few modules and patches each when it has been executed. Nothing is
imported that the script does not import. Patched are `__iter__` of the loader classes, which then returns a measured
pass, and `fetch` of torch's fetchers, which tells in a worker process what a batch costs there: wall seconds, CPU
seconds and samples. No other attribute of the script's objects is changed.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from headrace.measuring.facts import is_data_worker
from headrace.measuring.spool import FOLDER_VARIABLE, Spool
from headrace.measuring.watch import LOADER_VARIABLE, Trial

LOADERS = {
    "torch.utils.data.dataloader": "DataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
    "headrace.feed.loader.data_loader": "DataLoader",
}
FETCHERS = "torch.utils.data._utils.fetch"


def install() -> None:
    """Begins the trial in this process, unless the trial has ended."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    spool = Spool(folder)
    try:
        spec = spool.spec()
    except OSError:
        return  # a daemon that has outlived its trial
    if spool.over:
        return
    spool.write("python")
    trial = Trial(spec, spool)
    os.register_at_fork(after_in_child=trial.forked)
    atexit.register(trial.close)
    sys.meta_path.insert(0, _Finder(trial))


class _Finder:
    """Finds a few modules as the others do, and patches them when they have been executed."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by the import system."""
        if name not in LOADERS and name != FETCHERS:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                self._patch_afterwards(spec, name)
                return spec
        return None

    def _patch_afterwards(self, spec: ModuleSpec, name: str) -> None:
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the class's own again
            execute(module)
            if name == FETCHERS:
                for kind in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
                    _patch_fetch(getattr(module, kind, None), self._trial.spool)
            else:
                _patch_loader(getattr(module, LOADERS[name]), self._trial)
                self._trial.spool.write("imported", module=name)

        loader.exec_module = exec_module


def _patch_loader(kind: Any, trial: Trial) -> None:
    own_iter: Callable[[Any], Any] = kind.__iter__

    @functools.wraps(own_iter)
    def __iter__(self: Any) -> Any:
        return trial.watch(self, functools.partial(own_iter, self))

    kind.__iter__ = __iter__


def _patch_fetch(kind: Any, spool: Spool) -> None:
    """Measures in workers. The fetchers are internal to torch: where they are missing, costs are unknown."""
    own_fetch = getattr(kind, "fetch", None)
    if own_fetch is None:
        return

    @functools.wraps(own_fetch)
    def fetch(self: Any, index: Any) -> Any:
        loader = os.environ.get(LOADER_VARIABLE)
        if loader is None or not is_data_worker() or spool.over:
            return own_fetch(self, index)
        wall, cpu = time.perf_counter(), time.process_time()
        data = own_fetch(self, index)
        spool.write(
            "fetch", loader=loader, wall=time.perf_counter() - wall, cpu=time.process_time() - cpu,
            rows=len(index) if isinstance(index, (list, tuple)) else 1,
        )  # fmt: skip
        return data

    kind.fetch = fetch

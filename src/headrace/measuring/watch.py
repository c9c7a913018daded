"""The trial of one process: every loader is measured step by step, and one that was measured long enough is replayed.

Phases of a loader, each a number of steps (see `headrace.feed.metrics.step_timing`; the first one of a pass begins with
`iter()`):

    warmup -> measured -> counted -> cache -> settle -> replay -> over

`cache` keeps copies of batches, `settle` and `replay` hand out copies of them instead of loading. A loader leaves
`counted` when its loop computes gradients (else it is an evaluation, and waits for PATIENCE times the steps). A pass
keeps its length in every phase, so schedules that count steps stay right, and every rank makes the same number of
steps in every phase, whatever its batches are, so collectives meet. The first replay that is complete ends the trial.

At the borders of what is timed the CUDA device is waited for, so that a phase holds the work that was begun in it.

What is measured goes into the folder between the command line and the probe. `trial.json` in it holds the `Spec`. Every
process writes a file of JSON lines: a record is one line, written at once with O_APPEND, and has a `kind`;
`headrace.insight.doctor_report` reads them. The file `over` says that the trial has ended: nothing is written
after it. A record that cannot be written is dropped: the script must not fail because of it.

A finder in front of `sys.meta_path` waits for a few modules and patches each when it has been executed. Nothing is
imported that the script does not import. Patched are `__iter__` of the loader classes, which then returns a measured
pass, and `fetch` of torch's fetchers, which tells in a worker process what a batch costs there: wall seconds, CPU
seconds and samples. No other attribute of the script's objects is changed.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

from headrace.feed.metrics.step_timing import Step, StepTiming
from headrace.measuring.facts import (
    Uncopyable,
    bytes_of,
    cuda,
    describe,
    facts,
    hand_out,
    is_data_worker,
    keep,
    own_stats,
    rank,
    rows_of,
    sizes,
    synchronize,
    training,
    wait_until_children_are_quiet,
)

FOLDER_VARIABLE = "HEADRACE_TRIAL"


class Spec(NamedTuple):
    """What to measure.

    Attributes:
        steps: steps to measure, and steps to replay.
        warmup: steps before, which do not count.
        cache_bytes: limit of the batches that are kept for the replay.
        full: let the script go on after the trial.
        parent: pid of the command line; when it is gone the trial is over.
    """

    steps: int
    warmup: int
    cache_bytes: int
    full: bool
    parent: int


class Spool:
    """The folder, seen from one process.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._owner = 0
        self._path = ""

    def spec(self) -> Spec:
        """Reads what to measure. Raises OSError when the folder is gone."""
        with open(os.path.join(self.folder, "trial.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            return Spec(**json.load(file))

    @property
    def over(self) -> bool:
        """Whether the trial has ended, in whichever process."""
        return os.path.exists(os.path.join(self.folder, "over"))  # noqa: PTH118  (called for every batch)

    def write(self, kind: str, **fields: object) -> None:
        """Appends one record."""
        if self._owner != os.getpid():  # a forked child has a file of its own
            self._owner = os.getpid()
            self._path = os.path.join(self.folder, f"{self._owner}-{os.urandom(4).hex()}.jsonl")  # noqa: PTH118
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, json.dumps({"kind": kind, "pid": self._owner, **fields}).encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError:
            return

    def end(self) -> None:
        """Says that the trial has ended."""
        try:
            os.close(os.open(os.path.join(self.folder, "over"), os.O_WRONLY | os.O_CREAT, 0o600))  # noqa: PTH118
        except OSError:
            return


LOADER_VARIABLE = "HEADRACE_TRIAL_LOADER"
CACHE_STEPS = 8
SETTLE_STEPS = 3
PATIENCE = 3
_FOLLOWS = {"warmup": "measured", "measured": "counted", "cache": "settle", "settle": "replay", "replay": "over"}
STOPPED = 75
"""Exit code of a script that was stopped, so that `set -e` and `&&` stop too (EX_TEMPFAIL)."""
_LAUNCHERS = ("WORLD_SIZE", "TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")


class Stopped(SystemExit):
    """Ends the script as `sys.exit` would: `finally`, `with` and atexit run, `except Exception` does not catch it.

    Under a launcher the code is 0: another would make it kill the other ranks while they unwind.
    """

    def __init__(self) -> None:
        super().__init__(0 if any(name in os.environ for name in _LAUNCHERS) else STOPPED)


class Trial:
    """The loaders of one process.

    Args:
        spec: what to measure.
        spool: where to write.
    """

    def __init__(self, spec: Spec, spool: Spool) -> None:
        self.spec = spec
        self.spool = spool
        self.ended = False
        self._watches: dict[tuple[object, ...], LoaderWatch] = {}
        self._introduced = False

    def forked(self) -> None:
        """In a forked child: what was measured is the parent's."""
        self._watches = {}
        self._introduced = False

    def watch(self, loader: Any, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Returns the iterator for `iter(loader)`, given what makes the loader's own iterator."""
        if self.ended or is_data_worker() or (not self._watches and self.spool.over):
            return make()
        if not self._introduced:
            self._introduced = True
            self.spool.write("rank", argv=sys.argv, **rank())
        about = facts(loader)
        key = tuple(about.values())  # a script may make a new loader for every epoch
        if key not in self._watches:
            self._watches[key] = LoaderWatch(self, len(self._watches), about)
        return Pass(self._watches[key], loader, make)

    def end(self) -> None:
        """A replay is complete, or the command line is gone."""
        for watch in list(self._watches.values()):
            watch.flush()
        self.ended = True
        self.spool.end()

    def close(self) -> None:
        """The script ends, with or without the trial."""
        for watch in list(self._watches.values()):
            watch.close()


class _Step(Step):
    """A step of a trial. `copying`: seconds of its wait in which a kept batch was copied."""

    copying = 0.0


class LoaderWatch:
    """What is known of one loader.

    Args:
        trial: of this process.
        number: which loader.
        about: what it is.
    """

    def __init__(self, trial: Trial, number: int, about: dict[str, Any]) -> None:
        self.trial = trial
        self.number = number
        self.name = f"{os.getpid()}:{number}"
        self._quota = {
            "warmup": trial.spec.warmup,
            "measured": trial.spec.steps,
            "cache": CACHE_STEPS,
            "settle": SETTLE_STEPS,
            "replay": trial.spec.steps,
        }
        self.loader: Callable[[], Any] = lambda: None
        self._kept: list[Any] = []
        self._kept_bytes = 0
        self._why_not = ""
        self._next = 0
        self._so_far: dict[str, Any] = {}
        self._total = self._told = 0
        self._timing = StepTiming(_Step)
        self._steps: list[tuple[float, float, int, bool, float, float]] = []
        self._flushed = time.perf_counter()
        trial.spool.write("loader", loader=number, name=self.name, **about)
        self._enter("warmup")

    # The phases

    @property
    def replaying(self) -> bool:
        """Whether batches are copies of kept ones."""
        return self.phase in ("settle", "replay") and bool(self._kept) and not self._why_not

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._left = self._quota.get(phase, 0)
        workers = own_stats(self.loader()).get("worker_cpu_seconds")  # of a loader that knows them: headrace's own
        self._started = (time.time(), time.perf_counter(), time.process_time(), workers)

    def _leave(self) -> None:
        """The quota of the phase is used up."""
        self.trial.spool.write("phase", **self._taken())
        self.flush()
        if self.phase == "cache":
            wait_until_children_are_quiet()
        self._enter(_FOLLOWS[self.phase])
        if self.phase == "over":
            self._kept.clear()
            self.trial.end()

    def _taken(self) -> dict[str, Any]:
        """Returns what the phase took as a whole: the fields of a `phase` record."""
        at, clock, cpu, workers = self._started
        own = own_stats(self.loader())
        now = own.get("worker_cpu_seconds")
        return {
            "loader": self.number, "phase": self.phase, "started": at, "ended": time.time(), "total": self._total,
            "seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu,
            "worker_cpu": None if workers is None or now is None else now - workers, "executors": own.get("executors"),
            "cuda": cuda(), "replayed": self.replaying, "why_not": self._why_not,
        }  # fmt: skip

    def close(self) -> None:
        """The script ends: where that is before the replay, what its steps have taken is all that there will be."""
        if self.phase in ("warmup", "measured") and not self.trial.ended and self._so_far.get("total") == self._total:
            self.trial.spool.write("phase", **self._so_far)
        self.flush()

    def flush(self) -> None:
        """Writes the steps that were not written yet."""
        steps, self._steps = self._steps, []
        self._flushed = time.perf_counter()
        if self._total > self._told:
            self._told = self._total
            self.trial.spool.write("steps", loader=self.number, phase=self.phase, total=self._total, steps=steps)

    # One step

    def begin_pass(self, loader: Any) -> None:
        """A pass begins."""
        self.loader = weakref.ref(loader)
        if not self._total:
            self._enter(self.phase)  # only now can the loader be asked what its workers have taken
        self._timing.begin_pass()

    def end_pass(self) -> None:
        """A pass has given all that it has."""
        if self.phase in ("warmup", "measured") and not self.trial.ended:
            synchronize()
            self._so_far = self._taken()

    def asked(self, before: float) -> None:
        """`next()` was called: the step under way ends, and perhaps a phase, and another step begins.

        Args:
            before: seconds that belong to the new step already: making the iterator.

        Raises:
            Stopped: the trial is over, and the script is to be stopped.
        """
        self._end_step()
        if not self.trial.ended and not os.path.exists(f"/proc/{self.trial.spec.parent}"):
            self.trial.end()
        if self.trial.ended and not self.trial.spec.full:
            raise Stopped
        self._timing.ask(time.perf_counter() - before, time.process_time())

    def _end_step(self) -> None:
        if self._timing.under_way is None or self.trial.ended:
            return
        if self._left == 1:
            synchronize()
        now = time.perf_counter()
        step = self._timing.end(now)
        assert step is not None
        self._total += 1
        if self.phase in ("measured", "replay", "warmup"):
            self._steps.append((step.wait, step.length, step.rows, step.first, step.copying, step.cpu))
        if self.phase == "counted":
            patient = PATIENCE * (self.trial.spec.warmup + self.trial.spec.steps)
            if training() or self._total >= patient:
                self._enter("cache")
        else:
            self._left -= 1
            if self._left <= 0:
                self._leave()
        if now - self._flushed > 1.0:
            self.flush()

    def got(self, batch: Any, rows: int) -> None:
        """`next()` has a batch to return."""
        self._timing.got(time.perf_counter(), time.process_time(), rows)
        if self.phase == "cache" and not self.trial.ended:
            self._keep(batch)

    def _keep(self, batch: Any) -> None:
        size = bytes_of(batch)
        if not self._kept and not self._why_not:
            self.trial.spool.write("batch", loader=self.number, bytes=size, tree=describe(batch))
        if self._why_not or self._kept_bytes + size > self.trial.spec.cache_bytes:
            if not self._kept and not self._why_not:
                self._why_not = f"a batch of {size} bytes is larger than the cache ({self.trial.spec.cache_bytes})"
            return
        try:
            self._kept.append(keep(batch))
            hand_out(self._kept[-1])
        except Uncopyable as error:
            self._why_not = str(error)
            self._kept.clear()
        self._kept_bytes += size

    def replayed(self) -> Any:
        """Returns a copy of a kept batch."""
        began = time.perf_counter()
        kept = self._kept[self._next % len(self._kept)]
        self._next += 1
        batch = hand_out(kept)
        self._timing.asked.copying = time.perf_counter() - began
        return batch


class Pass(Iterator[Any]):
    """One pass over a loader: stands for the loader's own iterator.

    Args:
        watch: what measures it.
        loader: the loader.
        make: makes the loader's own iterator.
    """

    def __init__(self, watch: LoaderWatch, loader: Any, make: Callable[[], Iterator[Any]]) -> None:
        self._watch = watch
        self._make = make
        self._own: Iterator[Any] | None = None
        self._length, self._rows, self._last_rows = sizes(loader)
        self._given = 0
        self._shortened = False  # batches were replayed instead of loaded: the own iterator has more than are due
        watch.begin_pass(loader)
        self._making = 0.0
        if not watch.replaying:
            self._source()

    def _source(self) -> Iterator[Any]:
        if self._own is None:
            began = time.perf_counter()
            os.environ[LOADER_VARIABLE] = self._watch.name
            try:
                self._own = self._make()
            finally:
                os.environ.pop(LOADER_VARIABLE, None)
            self._making = time.perf_counter() - began
        return self._own

    def __next__(self) -> Any:
        watch = self._watch
        making, self._making = self._making, 0.0
        watch.asked(making)
        if self._shortened and self._length is not None and self._given >= self._length:
            self._own = None
            raise StopIteration
        if watch.replaying and not watch.trial.ended:
            batch = watch.replayed()
            self._shortened = True
        else:
            try:
                batch = next(self._source())
            except StopIteration:
                watch.end_pass()
                raise
        self._given += 1
        if not watch.trial.ended:
            last = self._length is not None and self._given == self._length
            watch.got(batch, (self._last_rows if last else self._rows) or rows_of(batch))
        return batch

    def __len__(self) -> int:
        return len(self._source())  # type: ignore[arg-type]  # as the own iterator answers, or raises

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source(), name)


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

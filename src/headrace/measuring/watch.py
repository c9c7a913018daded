"""The trial of one process: every loader is measured step by step, and one that was measured long enough is replayed.

Phases of a loader, each a number of steps (see `headrace.feed.metrics.step_timing`; the first one of a pass begins with
`iter()`):

    warmup -> measured -> counted -> cache -> settle -> replay -> over

`cache` keeps copies of batches, `settle` and `replay` hand out copies of them instead of loading. A loader leaves
`counted` when its loop computes gradients (else it is an evaluation, and waits for PATIENCE times the steps). A pass
keeps its length in every phase, so schedules that count steps stay right, and every rank makes the same number of
steps in every phase, whatever its batches are, so collectives meet. The first replay that is complete ends the trial.

At the borders of what is timed the CUDA device is waited for, so that a phase holds the work that was begun in it.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from headrace.feed.metrics.step_timing import Step, StepTiming
from headrace.measuring.batches import Uncopyable, bytes_of, describe, hand_out, keep, rows_of
from headrace.measuring.facts import (
    cuda,
    facts,
    is_data_worker,
    own_stats,
    rank,
    sizes,
    synchronize,
    training,
    wait_until_children_are_quiet,
)
from headrace.measuring.spool import Spec, Spool

LOADER_VARIABLE = "HEADRACE_TRIAL_LOADER"
CACHE_STEPS = 8
SETTLE_STEPS = 3
PATIENCE = 3
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
        self._started = (time.time(), time.perf_counter(), time.process_time(), self._worker_cpu())

    def _leave(self) -> None:
        """The quota of the phase is used up."""
        self.trial.spool.write("phase", **self._taken())
        self.flush()
        if self.phase == "warmup":
            self._enter("measured")
        elif self.phase == "measured":
            self._enter("counted")
        elif self.phase == "cache":
            wait_until_children_are_quiet()
            self._enter("settle")
        elif self.phase == "settle":
            self._enter("replay")
        elif self.phase == "replay":
            self._kept.clear()
            self._enter("over")
            self.trial.end()

    def _worker_cpu(self) -> float | None:
        """CPU seconds of the workers so far, from a loader that knows them: headrace's own."""
        return own_stats(self.loader()).get("worker_cpu_seconds")

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
        if not self.trial.ended and self._parent_is_gone():
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

    def _parent_is_gone(self) -> bool:
        return not os.path.exists(f"/proc/{self.trial.spec.parent}")

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

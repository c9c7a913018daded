"""`headrace.track`: measures a loader that is not headrace's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from headrace.errors import FeedError
from headrace.feed.batch.pytree import bytes_of, rows_of
from headrace.feed.identifiers import this_rank
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed_metrics import LoaderSecond

T = TypeVar("T")

_SCALARS = (int, float, complex, str, bytes, np.generic)


def extent(batch: Any) -> tuple[int, int]:
    """Returns the rows and the payload bytes of a batch of tensors or arrays, of TensorFlow's too; 0 where it has none.

    The rows are those of its first tensor with axes; what a distribution strategy has divided among replicas is added
    up. Without axes it is one sample, and so is a number or a text. Strings of TensorFlow have no bytes here: to know
    their length would be to read them.
    """
    if isinstance(batch, _SCALARS):
        return 1, 0
    rows, size = rows_of(batch), bytes_of(batch)
    tensorflow = sys.modules.get("tensorflow")
    if rows or size or tensorflow is None:
        return rows, size
    flat = tensorflow.nest.flatten
    tensors = [leaf for leaf in flat(batch, expand_composites=True) if tensorflow.is_tensor(leaf)]
    size = sum(leaf.dtype.size * leaf.shape.num_elements() for leaf in tensors if leaf.dtype.name != "string")
    for leaf in flat(batch):
        values = getattr(leaf, "values", None)  # of replicas: a tuple
        shapes = [one.shape for one in (values if isinstance(values, tuple) else (leaf,)) if tensorflow.is_tensor(one)]
        if any(shape.rank for shape in shapes):
            return sum(int(shape[0] or 0) for shape in shapes if shape.rank), size
        rows = max(rows, len(shapes))
    return rows, size


def measured(iterator: Iterator[T], meter: StepMeter, epoch: int) -> Iterator[T]:
    """Goes through one pass over a loader, and measures it.

    Args:
        iterator: of the loader.
        meter: measures it.
        epoch: number of the pass.
    """
    meter.begin()
    while True:
        meter.waiting()
        try:
            batch = next(iterator)
        except StopIteration:
            meter.ended()
            return
        meter.got(*extent(batch), epoch)
        yield batch


class Tracked(Generic[T]):
    """A loader that is measured; otherwise it is the loader itself (`len`, attributes). See `track`."""

    def __init__(self, loader: Iterable[T], name: str, logger: object = None) -> None:
        self._loader = loader
        own = getattr(loader, "_meter", None)  # of headrace's loader, which measures itself
        self._measures = not isinstance(own, StepMeter)
        self._meter = own if isinstance(own, StepMeter) else StepMeter(name)
        self._epoch = 0
        if logger is not None:
            self._meter.file.logger = _Live(logger)

    def __iter__(self) -> Iterator[T]:
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None and not tensorflow.executing_eagerly():
            raise FeedError(
                "headrace.track measures a loop that runs in Python, and this one is being made a graph",
                hint="take the loop out of the @tf.function, and leave the step in it",
            )
        if not self._measures or not self._meter.file:
            return iter(self._loader)
        epoch, self._epoch = self._epoch, self._epoch + 1
        return measured(iter(self._loader), self._meter, epoch)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):  # what copy and pickle ask for is of this object
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Live:
    """Gives a loader's figures to a logger, about once a second; of several ranks, those of rank 0."""

    def __init__(self, logger: object) -> None:
        self._write = _writer(logger)
        self._steps = 0

    def __call__(self, record: msgspec.Struct) -> None:
        if not isinstance(record, LoaderSecond) or this_rank()[0]:
            return
        self._steps += record.steps
        figures = {
            "step_time": 1000 * record.step / record.steps,
            "data_wait": 100 * record.wait / record.step if record.step else None,
            "samples_per_second": record.samples / record.step if record.samples and record.step else None,
            "queue": record.queue,
        }
        known = {f"headrace/{name}/{record.loader}": value for name, value in figures.items() if value is not None}
        self._write(known, self._steps)


def _writer(logger: Any) -> Callable[[dict[str, float], int], object]:
    """Returns what gives values and their step to a logger. Raises TypeError: it is none."""
    if callable(getattr(logger, "log_metrics", None)):  # MLflow, Lightning's loggers
        return lambda values, step: logger.log_metrics(values, step=step)
    if callable(getattr(logger, "add_scalar", None)):  # torch's SummaryWriter
        return lambda values, step: [logger.add_scalar(name, value, step) for name, value in values.items()]
    if callable(getattr(logger, "log", None)) and hasattr(logger, "define_metric"):
        # W&B counts one step a row: ours go with the user's next row, whose number stays his
        return lambda values, step: logger.log(values, commit=False)
    if callable(logger):
        return logger  # type: ignore[no-any-return]
    raise TypeError(
        "logger must have log_metrics (MLflow, Lightning), add_scalar (torch's SummaryWriter) or log (a W&B run), or "
        f"be a function of values and a step, not {type(logger).__name__}"
    )


def track(loader: Iterable[T], name: str = "train", logger: object = None) -> Tracked[T]:
    """Measures step time, data wait and, with CUDA, compute time of any loader. headrace's own does so by itself.

    Outside a job, without a logger, nothing is measured: a pass is the loader's own. A step that is measured costs some
    7 microseconds more.

    A step ends when the next batch is asked for, or with the loader. So the last step of a loop that is left before (by
    `break`, or `zip(range(n), ...)`) is not counted, because its end is not known: an iterator may be kept long after
    the loop, and an exception may have cut the step short. Give `track` a loader that ends where the loop does.

    Args:
        loader: anything that is iterated once an epoch in Python: torch's DataLoader, a tf.data.Dataset in a loop of
            your own, a generator function's result.
        name: name of the loader in the run's metrics.
        logger: gets the loader's figures about once a second, in a job or without one; of several ranks those of rank
            0. A W&B run, torch's SummaryWriter, `mlflow` itself, a logger of Lightning, or a function of a dict of
            values and the number of steps so far. When it raises, that is told, and no more is logged.

    Example:
        for images, labels in headrace.track(loader):
            ...

    Raises:
        TypeError: the logger is none of these.
        FeedError: in iteration inside of a tf.function.
    """
    return Tracked(loader, name, logger)

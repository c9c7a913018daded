"""Keras on TensorFlow: step time and data wait of `model.fit`.

`fit` takes its batches inside the compiled training function, where a callback cannot measure. So the callback takes
each batch from the same iterator in Python, measures the time, and passes the batch to the function. Model, order of
batches and results stay the same. Keras 3 has such a function, for data that comes from Python; Keras 2 makes the
function again around such a batch.

With several steps in one call (`steps_per_execution`) this does not work: then a warning says that nothing is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras  # type: ignore[import-untyped, unused-ignore]

from headrace.adapters.metering import Metering
from headrace.errors import FeedError
from headrace.feed.metrics.track import measured

Function = Callable[[Any], Any]


class MeterCallback(Metering, keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Measures a training's steps: ``model.fit(dataset, callbacks=[MeterCallback()])``.

    Outside a job nothing is measured and the training function is not changed. TensorFlow reports no time of the
    device's work, so a step without its wait counts as compute.

    Args:
        name: name of the loader in the run's metrics.

    Raises:
        FeedError: Keras runs on another library than TensorFlow.
    """

    def __init__(self, name: str = "train") -> None:
        super().__init__(name)
        if _version() >= 3 and keras.backend.backend() != "tensorflow":
            raise FeedError(
                f"MeterCallback measures Keras on TensorFlow, and this is Keras on {keras.backend.backend()}",
                hint="write the loop yourself and wrap its loader: for batch in headrace.track(loader)",
            )
        self._function: Function | None = None  # Keras's own
        self._pass: tuple[Any, Iterator[Any]] | None = None  # Keras's iterator, and ours around it

    def on_train_begin(self, logs: Any = None) -> None:
        """Puts the measurement between the iterator and the training function."""
        if not self._meter.file:
            return
        if _steps_per_execution(self.model) != 1:
            warnings.warn(
                f"the steps are not measured: steps_per_execution={_steps_per_execution(self.model)} runs several in "
                "one call, whose batches cannot be told apart",
                stacklevel=2,
            )
            return
        found = self.model.train_function
        own = getattr(found, "headrace_own", found)  # a training that was broken off has left ours there
        run = own if _version() >= 3 else _on_one_batch(self.model)
        self._function = own

        def function(iterator: Any) -> Any:
            if self._pass is None or self._pass[0] is not iterator:
                self._pass = (iterator, measured(iterator, self._meter, self._epoch))
            return run(iter((next(self._pass[1]),)))

        function.headrace_own = own  # type: ignore[attr-defined]
        self.model.train_function = function

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts."""
        self._epoch, self._pass = epoch, None

    on_test_begin = Metering.step_ends
    on_epoch_end = Metering.epoch_ends

    def on_train_end(self, logs: Any = None) -> None:
        """Gives the training function back."""
        if self._function is not None:
            self.model.train_function, self._function = self._function, None
        self._pass = None
        self._meter.close()


def _version() -> int:
    return int(keras.__version__.split(".")[0])


def _steps_per_execution(model: Any) -> int:
    if _version() >= 3:
        return int(model.steps_per_execution)
    steps = model._steps_per_execution
    return 1 if steps is None else int(steps.numpy())


def _on_one_batch(model: Any) -> Function:
    """Returns Keras 2's training function for an iterator over one batch."""
    import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

    eager, compiled = model.run_eagerly, model.train_function
    model.run_eagerly = True  # what is made then is a plain function, which goes into a graph below
    try:
        step = model.make_train_function(force=True)
    finally:
        model.run_eagerly, model.train_function = eager, compiled

    def on_data(data: Any) -> Any:
        return step(iter((data,)))

    function = on_data if eager else tf.function(on_data, reduce_retracing=True)
    return lambda batch: function(next(batch))

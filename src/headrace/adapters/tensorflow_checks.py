"""What is wrong with the arguments of `headrace.tensorflow.distribute`, found before anything is sent.

The checks need no dispatcher, so they are the same in a job and outside of one: a mistake shows itself in a notebook
or in the first minute, and not on the hosts of a job. TensorFlow is imported by those that look into a data set.
"""

from __future__ import annotations

import json
import operator
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

from headrace.errors import PipelineError, UsageError

PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
MODES = ("dynamic", "off")
_OLD_MODES = {"distributed_epoch": "dynamic", "parallel_epochs": "off"}  # TensorFlow's names before its 2.6

INSTEAD = (
    "make the pipeline of TensorFlow operations: tf.io and tf.image instead of NumPy or PIL inside map(), "
    "tf.data.TFRecordDataset or list_files() instead of from_generator(); or do the Python part after distribute(), "
    "where it runs in the training process; Python pipelines on data hosts are what headrace's own feed is for"
)


def mode_of(given: object) -> str:
    """Returns ``dynamic`` or ``off``.

    Args:
        given: one of these, TensorFlow's older names for them (``distributed_epoch``, ``parallel_epochs``), or
            `ShardingPolicy.DYNAMIC` or `OFF`.

    Raises:
        UsageError: it is another policy, or none.
    """
    if type(given).__name__ == "ShardingPolicy":
        name: object = str(getattr(given, "name", "")).lower()
    else:
        name = _OLD_MODES.get(given, given) if isinstance(given, str) else given
    if isinstance(name, str) and name in MODES:
        return name
    raise UsageError(
        f"processing_mode must be one of {', '.join(MODES)}, not {given!r}",
        hint="dynamic divides the data among the workers; off lets every worker make all of it",
    )


def check_consumer(index: SupportsIndex | None, count: SupportsIndex | None) -> None:
    """Checks the arguments of coordinated reads. Raises UsageError."""
    if index is None and count is None:
        return
    try:
        whole = None if index is None or count is None else (operator.index(index), operator.index(count))
    except TypeError:
        whole = None
    if whole is None or not 0 <= whole[0] < whole[1]:
        raise UsageError(
            f"consumer_index must be 0 to num_consumers - 1, not {index!r} with num_consumers {count!r}",
            hint="give both for coordinated reads: the number of this rank, from 0, and how many ranks there are; "
            "or none of them",
        )


def check_name(name: object) -> None:
    """Checks that it can name a data set of the service. Raises UsageError."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"name must be a text that is not empty, not {name!r}")


def check_compression(compression: object) -> None:
    """Checks the compression. Raises UsageError."""
    if compression not in ("AUTO", "SNAPPY", None):
        raise UsageError(f"compression must be 'AUTO', 'SNAPPY' or None, not {compression!r}")


def check_dataset(dataset: object) -> None:
    """Checks that it is a `tf.data.Dataset`. Raises UsageError. Does not import TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")  # without it nobody has made a data set
    if tensorflow is None or not isinstance(dataset, tensorflow.data.Dataset):
        raise UsageError(
            f"distribute takes a tf.data.Dataset, not {type(dataset).__name__}",
            hint="make one: tf.data.TFRecordDataset(files), or tf.data.Dataset.from_tensor_slices(arrays); call "
            "distribute before strategy.experimental_distribute_dataset",
        )
    if not tensorflow.executing_eagerly():
        raise UsageError("distribute is called inside a graph", hint="call it outside of tf.function")


def check_pipeline(dataset: Any) -> None:
    """Raises PipelineError when a pipeline holds Python functions, or cannot be written down as a graph at all."""
    import tensorflow as tf

    try:
        written = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor,
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE.value,
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        raise PipelineError(
            f"the pipeline cannot be sent to data workers: {first_line(error)}", hint=INSTEAD
        ) from error
    graph = tf.compat.v1.GraphDef.FromString(written.numpy())
    found = sorted(set(python_ops(graph)))
    if found:
        where = ", ".join(found[:4])
        raise PipelineError(
            f"the pipeline runs Python functions ({where}), which exist in this process only: py_function, "
            "numpy_function and from_generator cannot be sent to data workers",
            hint=INSTEAD,
        )


def python_ops(graph: Any) -> Iterator[str]:
    """Yields the operations of a GraphDef that call Python, as ``operation in function``."""
    yield from (node.op for node in graph.node if node.op in PYTHON_OPS)
    for function in graph.library.function:
        nodes: Iterable[Any] = function.node_def
        yield from (f"{node.op} in {function.signature.name}" for node in nodes if node.op in PYTHON_OPS)


def check_rounds(elements: int) -> None:
    """Checks that a data set can be read in rounds, which have no last one.

    Args:
        elements: its cardinality; negative when it is infinite or nobody knows.

    Raises:
        PipelineError: it ends.
    """
    if elements >= 0:
        raise PipelineError(
            f"coordinated reads (consumer_index, num_consumers) need a data set without an end; this one has "
            f"{elements} elements",
            hint="put repeat() before distribute(), and count the steps of an epoch: "
            "fit(..., steps_per_epoch=...) or take(...)",
        )


def warn_shares(elements: int, ranks: int) -> None:
    """Warns when several ranks take from a data set that ends: their shares are not equal.

    Args:
        elements: as in `check_rounds`.
        ranks: how many processes call `distribute`.
    """
    if elements >= 0 and ranks > 1:
        warnings.warn(
            f"{ranks} ranks share the {elements} elements of this data set, and each goes to the rank that asks first: "
            "a rank may get fewer than the others, or none, and ranks that wait for each other then hang. Put repeat() "
            "before distribute() and give fit a steps_per_epoch, or use consumer_index and num_consumers",
            stacklevel=3,
        )


def ranks_of(environment: Mapping[str, str]) -> int:
    """Returns how many training processes there are, as torchrun, MPI, Horovod or TF_CONFIG say; else 1."""
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE"):
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    try:
        cluster = json.loads(environment.get("TF_CONFIG") or "{}")["cluster"]
        return sum(len(cluster.get(kind, ())) for kind in ("chief", "worker")) or 1
    except (ValueError, KeyError, TypeError, AttributeError):  # none, or TensorFlow's own business
        return 1


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error of TensorFlow says."""
    return str(getattr(error, "message", "") or error).strip().partition("\n")[0][:500]

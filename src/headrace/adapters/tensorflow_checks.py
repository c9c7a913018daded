"""What is wrong with the arguments of `headrace.tensorflow.distribute`, found before anything is sent.

The checks need no dispatcher, so they are the same in a job and outside of one: a mistake shows itself in a notebook
or in the first minute, and not on the hosts of a job. TensorFlow is imported by those that look into a dataset.
"""

from __future__ import annotations

import math
import operator
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from headrace.adapters.tensorflow_cut import Operation, travels, word_of
from headrace.errors import PipelineError, UsageError

PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
MODES = ("dynamic", "off")
TARGETS = ("AUTO", "ANY", "LOCAL")
AUTOTUNE = -1  # tf.data.AUTOTUNE
# Variables of tf.random.Generator and of Keras's layers, which hold the state of their random numbers.
_RANDOM_STATE = re.compile(r"(.*/)?(StateVar|seed_generator_state)/\d+")
_VARIABLE = re.compile(r'name="([^"]*)".*type="tensorflow::Var"', re.DOTALL)
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
    """Checks that it can name a dataset of the service. Raises UsageError."""
    if not isinstance(name, str) or not name:
        raise UsageError(
            f"name must be a text that is not empty, not {name!r}",
            hint="ranks that give one name share the elements; a second dataset has another one: 'validation'",
        )


def check_compression(compression: object) -> None:
    """Checks the compression. Raises UsageError."""
    if compression not in ("AUTO", "SNAPPY", None):
        raise UsageError(
            f"compression must be 'AUTO', 'SNAPPY' or None, not {compression!r}",
            hint="AUTO leaves it to TensorFlow; None sends the elements as they are",
        )


def check_dataset(dataset: object) -> None:
    """Checks that it is a `tf.data.Dataset`. Raises UsageError. Does not import TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")  # before it is imported there is no dataset
    if tensorflow is None or not isinstance(dataset, tensorflow.data.Dataset):
        raise UsageError(
            f"distribute takes a tf.data.Dataset, not {type(dataset).__name__}",
            hint="make one: tf.data.TFRecordDataset(files), or tf.data.Dataset.from_tensor_slices(arrays); call "
            "distribute before strategy.experimental_distribute_dataset",
        )
    if not tensorflow.executing_eagerly():
        raise UsageError("distribute is called inside a graph", hint="call it outside of tf.function")


def check_options(
    *,
    max_outstanding_requests: object,
    target_workers: object,
    data_transfer_protocol: object,
    service: object,
    wait: object,
) -> None:
    """Checks the arguments that are passed on. Raises UsageError."""
    asked = max_outstanding_requests
    count = operator.index(asked) if isinstance(asked, SupportsIndex) and not isinstance(asked, bool) else 0
    if asked is not None and count < 1 and count != AUTOTUNE:
        raise UsageError(
            f"max_outstanding_requests must be a whole number of at least 1, or None, not {asked!r}",
            hint="None, or tf.data.AUTOTUNE, leaves it to TensorFlow",
        )
    if not isinstance(target_workers, str) or target_workers.upper() not in TARGETS:
        raise UsageError(
            f"target_workers must be one of {', '.join(TARGETS)}, not {target_workers!r}",
            hint="AUTO lets TensorFlow choose; ANY reads from all workers; LOCAL from workers in this process only, "
            "which a job does not start",
        )
    if data_transfer_protocol not in (None, "grpc"):
        raise UsageError(
            f"data_transfer_protocol must be 'grpc' or None, not {data_transfer_protocol!r}",
            hint="leave it out: the workers speak gRPC",
        )
    if service is not None and (not isinstance(service, str) or not service):
        raise UsageError(
            f"service must be an address, grpc://host:port, or None, not {service!r}",
            hint="leave it out in a job; None takes the job's service, or none where there is none",
        )
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait < math.inf:
        raise UsageError(
            f"wait must be a number of seconds of at least 0, not {wait!r}",
            hint="it is how long the dispatcher may take to start; the default is 120",
        )


def check_cache(cache: object, elements: int, *, rounds: bool) -> None:
    """Checks the cross-trainer cache. Raises UsageError, or PipelineError when the dataset has an end.

    Args:
        cache: as given; None for none.
        elements: as in `check_rounds`.
        rounds: whether coordinated reads are asked for.
    """
    if cache is None:
        return
    kind = sys.modules["tensorflow"].data.experimental.service.CrossTrainerCache
    if not isinstance(cache, kind):
        raise UsageError(
            f"cross_trainer_cache must be a CrossTrainerCache or None, not {cache!r}",
            hint="tf.data.experimental.service.CrossTrainerCache(trainer_id=...), with an id for each trainer",
        )
    if rounds:
        raise UsageError(
            "cross_trainer_cache and coordinated reads (consumer_index, num_consumers) exclude each other",
            hint="the cache gives every trainer all elements; coordinated reads give every rank an element of a round",
        )
    if elements >= 0:
        raise PipelineError(
            f"cross_trainer_cache needs a dataset without an end; this one has {elements} elements",
            hint="put repeat() before distribute(), and count the steps of an epoch: "
            "fit(..., steps_per_epoch=...) or take(...)",
        )


def graph_of(dataset: Any) -> Any:
    """Returns the GraphDef that would be sent. Raises PipelineError when there is none."""
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
    return tf.compat.v1.GraphDef.FromString(written.numpy())


def check_pipeline(graph: Any) -> None:
    """Checks that workers can run a pipeline. Raises PipelineError when it holds Python functions."""
    found = sorted(set(python_ops(graph)))
    if found:
        where = ", ".join(found[:4])
        raise PipelineError(
            f"the pipeline runs Python functions ({where}), which exist in this process only: py_function, "
            "numpy_function and from_generator cannot be sent to data workers",
            hint=INSTEAD,
        )


def check_elements(spec: Any, operation: Operation) -> None:
    """Checks that the elements of a pipeline can travel.

    Args:
        spec: of the elements.
        operation: that makes them.

    Raises:
        PipelineError: they hold datasets, optionals or tensor arrays.
    """
    if not travels(spec):
        raise PipelineError(
            f"the elements that {operation} makes cannot be sent: they hold datasets or other objects of one process, "
            f"or single rows of a ragged tensor, and no tensors alone ({str(spec)[:200]})",
            hint="before distribute(), turn windows into tensors: window(n).flat_map(lambda w: w.batch(n)), and rows "
            "into tensors: map(lambda row: row); or do that part after distribute()",
        )


def check_variables(dataset: Any) -> None:
    """Checks that the functions of a pipeline read no variable, whose value workers would not see change.

    Raises:
        PipelineError: one does.
    """
    for node in _nodes(dataset):
        for wrapper in node._functions():
            for capture in wrapper.function.captured_inputs:
                handle = _VARIABLE.search(str(capture)) if capture.dtype.name == "resource" else None
                if handle and not _RANDOM_STATE.fullmatch(handle[1]):
                    raise PipelineError(
                        f"{word_of(node)} reads or writes the variable {handle[1].rpartition('/')[0]!r}: workers "
                        "have a copy with the value of now, and neither do they see what is assigned later "
                        "nor this process what they assign",
                        hint="use a constant: value = tf.constant(variable); or a value that comes with the elements; "
                        "or do that part after distribute(). Where the value of now is what you want, as that of a "
                        "model that is not trained: distribute(..., freeze_variables=True)",
                    )


def _nodes(dataset: Any) -> Iterator[Any]:
    """Yields the operations of a pipeline, each once."""
    waiting, seen = [dataset], set()
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            implementation = getattr(node, "_impl", None)  # of readers of files
            waiting += [*node._inputs(), *([implementation] if implementation is not None else [])]


def python_ops(graph: Any) -> Iterator[str]:
    """Yields the operations of a GraphDef that call Python, as ``operation in function``."""
    yield from (node.op for node in graph.node if node.op in PYTHON_OPS)
    for function in graph.library.function:
        nodes: Iterable[Any] = function.node_def
        yield from (f"{node.op} in {function.signature.name}" for node in nodes if node.op in PYTHON_OPS)


def check_rounds(elements: int) -> None:
    """Checks that a dataset can be read in rounds, which have no last one.

    Args:
        elements: its cardinality; negative when it is infinite or unknown.

    Raises:
        PipelineError: it ends.
    """
    if elements >= 0:
        raise PipelineError(
            f"coordinated reads (consumer_index, num_consumers) need a dataset without an end; this one has "
            f"{elements} elements",
            hint="put repeat() before distribute(), and count the steps of an epoch: "
            "fit(..., steps_per_epoch=...) or take(...)",
        )


def warn_shares(elements: int, ranks: int) -> None:
    """Warns when several ranks take from a dataset that ends: their shares are not equal.

    Args:
        elements: as in `check_rounds`.
        ranks: how many processes call `distribute`.
    """
    if elements >= 0 and ranks > 1:
        warnings.warn(
            f"{ranks} ranks share the {elements} elements of this dataset, and each goes to the rank that asks first: "
            "a rank may get fewer than the others, or none, and ranks that wait for each other then hang. Put repeat() "
            "before distribute() and give fit a steps_per_epoch, or use consumer_index and num_consumers",
            stacklevel=3,
        )


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error of TensorFlow says."""
    return str(getattr(error, "message", "") or error).strip().partition("\n")[0][:500]

"""TensorFlow: a `tf.data.Dataset` that the job's tf.data.service makes.

`distribute` is `tf.data.experimental.service.distribute` with what a job knows: the address of the dispatcher, and a
name under which all ranks share one job of the service, so that a pipeline runs once and not once per rank. It finds
out early what TensorFlow would find late or never: a pipeline with Python functions, which cannot leave this process;
an address at which nothing answers, to which TensorFlow's client would talk without end; a name that is used twice,
which TensorFlow answers with an empty dataset; ranks that bring different pipelines, of which it runs one.

What is wrong with the arguments is found before anything is sent, without a dispatcher, so it is the same in a job and
outside of one: a mistake shows itself in a notebook or in the first minute, and not on the hosts of a job.

TensorFlow is imported when a function is called that looks into a dataset.
"""

from __future__ import annotations

import logging
import math
import operator
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, SupportsIndex, TypeVar

from headrace.adapters.tensorflow_cut import Plan, plan_of, travels, word_of
from headrace.adapters.tensorflow_likeness import (
    check_likeness,
    check_started_once,
    job_name,
    likeness_of,
    rank_name,
    ranks_of,
)
from headrace.adapters.tensorflow_passes import Passes, StageGraph, cardinality_of, graph_of_pass, read_passes
from headrace.errors import PipelineError, UsageError, WorkersLost
from headrace.instance.environment import TF_DATA_SERVICE
from headrace.instance.paths import BASE_VARIABLE

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


class _Option(NamedTuple):
    """What an argument may be: a test of it, and in words; and what to do in place of what it may not be."""

    fits: Callable[[Any], bool]
    allowed: str
    hint: str


def _is_number_of_requests(value: object) -> bool:
    count = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else 0
    return value is None or count >= 1 or count == AUTOTUNE


_OPTIONS = {
    "name": _Option(
        lambda name: isinstance(name, str) and bool(name),
        "a text that is not empty",
        "ranks that give one name share the elements; a second dataset has another one: 'validation'",
    ),
    "compression": _Option(
        lambda compression: compression in ("AUTO", "SNAPPY", None),
        "'AUTO', 'SNAPPY' or None",
        "AUTO leaves it to TensorFlow; None sends the elements as they are",
    ),
    "max_outstanding_requests": _Option(
        _is_number_of_requests,
        "a whole number of at least 1, or None",
        "None, or tf.data.AUTOTUNE, leaves it to TensorFlow",
    ),
    "target_workers": _Option(
        lambda workers: isinstance(workers, str) and workers.upper() in TARGETS,
        f"one of {', '.join(TARGETS)}",
        "AUTO lets TensorFlow choose; ANY reads from all workers; LOCAL from workers in this process only, which a job "
        "does not start",
    ),
    "data_transfer_protocol": _Option(
        lambda protocol: protocol in (None, "grpc"), "'grpc' or None", "leave it out: the workers speak gRPC"
    ),
    "service": _Option(
        lambda service: service is None or (isinstance(service, str) and bool(service)),
        "an address, grpc://host:port, or None",
        "leave it out in a job; None takes the job's service, or none where there is none",
    ),
    "wait": _Option(
        lambda wait: not isinstance(wait, bool) and isinstance(wait, (int, float)) and 0 <= wait < math.inf,
        "a number of seconds of at least 0",
        "it is how long the dispatcher may take to start; the default is 120",
    ),
}


def check_options(**options: object) -> None:
    """Checks arguments of `distribute` by themselves. Raises UsageError."""
    for name, value in options.items():
        if not _OPTIONS[name].fits(value):
            raise UsageError(f"{name} must be {_OPTIONS[name].allowed}, not {value!r}", hint=_OPTIONS[name].hint)


def check_cache(cache: object, elements: int, *, rounds: bool) -> None:
    """Checks the cross-trainer cache. Raises UsageError, or PipelineError when the dataset has an end.

    Args:
        cache: as given; None for none.
        elements: as in `check_endless`.
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
    check_endless("cross_trainer_cache needs", elements)


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


def checked_graph(dataset: Any) -> Any:
    """Returns the GraphDef that would be sent.

    Raises:
        PipelineError: there is none; it holds Python functions, which workers cannot run; its elements cannot travel.
    """
    graph = graph_of(dataset)
    bodies: list[tuple[str, Any]] = [("", graph.node)]
    bodies += [(f" in {function.signature.name}", function.node_def) for function in graph.library.function]
    found = sorted({f"{node.op}{where}" for where, nodes in bodies for node in nodes if node.op in PYTHON_OPS})
    if found:
        where = ", ".join(found[:4])
        raise PipelineError(
            f"the pipeline runs Python functions ({where}), which exist in this process only: py_function, "
            "numpy_function and from_generator cannot be sent to data workers",
            hint=INSTEAD,
        )

    if not travels(dataset.element_spec):
        raise PipelineError(
            f"the elements that {word_of(dataset)} makes cannot be sent: they hold datasets or other objects of one "
            f"process, or single rows of a ragged tensor, and no tensors alone ({str(dataset.element_spec)[:200]})",
            hint="before distribute(), turn windows into tensors: window(n).flat_map(lambda w: w.batch(n)), and rows "
            "into tensors: map(lambda row: row); or do that part after distribute()",
        )
    return graph


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


def check_endless(what: str, elements: int) -> None:
    """Checks that a dataset has no end.

    Args:
        what: what cannot have one, with its verb.
        elements: the dataset's cardinality; negative when it is infinite or unknown.

    Raises:
        PipelineError: it ends.
    """
    if elements >= 0:
        raise PipelineError(
            f"{what} a dataset without an end; this one has {elements} elements",
            hint="put repeat() before distribute(), and count the steps of an epoch: "
            "fit(..., steps_per_epoch=...) or take(...)",
        )


def warn_shares(elements: int, ranks: int) -> None:
    """Warns when several ranks take from a dataset that ends: their shares are not equal.

    Args:
        elements: as in `check_endless`.
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


Dataset = TypeVar("Dataset")

WAIT = 120.0
_POLL = 0.2
_ANSWER_SECONDS = 5.0
# What an HTTP/2 connection begins with (RFC 9113, 3.4): the client's preface and an empty SETTINGS frame. The server
# answers with a frame of its own, whose fourth byte is its type, SETTINGS.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_SETTINGS = 4

_log = logging.getLogger(__name__)
_names: set[tuple[str, str]] = set()


def distribute(
    dataset: Dataset,
    name: str = "train",
    *,
    processing_mode: Any = "dynamic",
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    compression: str | None = "AUTO",
    cross_trainer_cache: Any = None,
    target_workers: str = "AUTO",
    data_transfer_protocol: str | None = None,
    service: str | None = None,
    wait: float = WAIT,
    same_data: bool = False,
    freeze_variables: bool = False,
) -> Dataset:
    """Returns a dataset whose elements the job's tf.data.service makes, with all operations before this one.

    In a job without ``data_service: {tf_data: ...}``, and outside of a job, it checks its arguments and returns the
    dataset as it is. Every rank calls it with the same pipeline and name, so do not shard by rank: each element goes
    to one rank, the first that asks. Ranks may get different numbers of elements: give `fit` a `steps_per_epoch`, or
    use coordinated reads.

    Args:
        dataset: a `tf.data.Dataset` of TensorFlow operations.
        name: of the dataset in this job: the ranks that use one name share its elements. Iterating again begins the
            next epoch.
        processing_mode: ``dynamic``: the work is divided among the workers, each element comes once, and what a worker
            had that died is lost; `plan` says which part one worker makes for all, whose loss is an error. ``off``:
            every worker makes all of the data. TensorFlow's words for them may be used: `ShardingPolicy.DYNAMIC` and
            `OFF`, ``distributed_epoch`` and ``parallel_epochs``. Its static policies are refused: the shard of a worker
            that registers late, or has died, is silently left out.
        consumer_index, num_consumers: coordinated reads: number of this rank, and of all; the dataset must be
            infinite, and every rank gets an element of each round.
        max_outstanding_requests: elements that are asked for ahead, at least 1; None: TensorFlow decides.
        compression: ``AUTO``, ``SNAPPY`` or None.
        cross_trainer_cache: a `tf.data.experimental.service.CrossTrainerCache`; the dataset must be infinite.
        target_workers: ``AUTO``, ``ANY`` or ``LOCAL``.
        data_transfer_protocol: of the data: ``grpc``, or None, which is the same.
        service: address of a dispatcher, ``grpc://host:port``; None: that of the job.
        wait: seconds to wait for the dispatcher, which may still be starting.
        same_data: ranks whose pipelines differ in operations or constants make the same data nevertheless.
        freeze_variables: functions that read variables go on with the values of now.

    Raises:
        PipelineError: the pipeline cannot be sent to workers or divided among them, or one that is read in rounds, or
            through the cache, has an end.
        UsageError: an argument is wrong, or the name is in use (which matters with a service only): in this process,
            by a rank with another pipeline, or by the process in whose place this one was started.
        WorkersLost: no dispatcher answers at the address in time.
    """
    mode = mode_of(processing_mode)
    check_consumer(consumer_index, num_consumers)
    check_options(
        name=name,
        compression=compression,
        max_outstanding_requests=max_outstanding_requests,
        target_workers=target_workers,
        data_transfer_protocol=data_transfer_protocol,
        service=service,
        wait=wait,
    )
    address = service or os.environ.get(TF_DATA_SERVICE)
    endpoint = parse_address(address) if address else None
    check_dataset(dataset)
    elements = cardinality_of(dataset)
    check_cache(cross_trainer_cache, elements, rounds=num_consumers is not None)
    if num_consumers is not None:
        check_endless("coordinated reads (consumer_index, num_consumers) need", elements)
    graph = checked_graph(dataset)
    if not freeze_variables:
        check_variables(dataset)
    if not address or endpoint is None:
        return dataset
    import tensorflow as tf

    if (address, name) in _names:
        raise UsageError(
            f"a dataset named {name!r} is distributed already in this process; TensorFlow would confuse the two "
            "and return only what is left of the first",
            hint="iterate the same dataset again for the next epoch, or give this one a name: "
            f"distribute(dataset, {name + '-2'!r})",
        )
    if num_consumers is None:
        warn_shares(elements, ranks_of(os.environ))
    await_dispatcher(address, endpoint, wait)
    structure = str(dataset.element_spec)  # type: ignore[attr-defined]
    here = likeness_of(graph, elements, structure, os.environ.get(BASE_VARIABLE, ""))
    options = {
        "consumer_index": consumer_index,
        "num_consumers": num_consumers,
        "max_outstanding_requests": max_outstanding_requests,
        "data_transfer_protocol": data_transfer_protocol,
        "cross_trainer_cache": cross_trainer_cache,
        "target_workers": target_workers.upper(),
    }
    try:
        job = job_name(name, os.environ)
        check_likeness(address, job, name, here, rank_name(os.environ), same_data=same_data)
        if elements != tf.data.INFINITE_CARDINALITY:
            check_started_once(address, job, name, os.environ)
        rounds = num_consumers is not None or cross_trainer_cache is not None
        stages = plan_of(dataset, mode, rounds=rounds)
        _log.info("dataset %r is made in this way:\n%s", name, stages)
        if stages.costly:
            _log.warning("dataset %r: %s", name, stages.advice)
        made: Dataset = _read(stages, address, job, name, compression, elements, options)
    except tf.errors.UnimplementedError as error:
        raise WorkersLost(
            f"the server at {address} is not a dispatcher of tf.data.service: {first_line(error)}",
            hint="name the dispatcher, not a worker; in a job leave `service` out",
        ) from error
    except (tf.errors.OpError, ValueError) as error:
        raise PipelineError(
            f"tf.data.service at {address} does not take the dataset {name!r}: {first_line(error)}", hint=INSTEAD
        ) from error
    _names.add((address, name))
    return made


def plan(dataset: Any, *, processing_mode: Any = "dynamic") -> Plan:
    """Returns how `distribute` would have a dataset made: the part that one worker makes, and what all divide.

    Its text is for people. No service is needed.

    Raises:
        PipelineError, UsageError: as `distribute`.
    """
    mode = mode_of(processing_mode)
    check_dataset(dataset)
    checked_graph(dataset)
    return plan_of(dataset, mode, rounds=False)


def _read(stages: Plan, address: str, job: str, name: str, compression: str | None, elements: int, options: Any) -> Any:
    """Returns the dataset that reads the last of some stages."""
    import tensorflow as tf

    service = tf.data.experimental.service
    last = stages.stages[-1]
    graphs = [StageGraph(graph_of(stage.dataset), stage.dataset.element_spec, None) for stage in stages.stages]
    if len(graphs) == 1 and graph_of_pass(graphs[0].graph, 1) == graphs[0].graph:
        policy = service.ShardingPolicy.DYNAMIC if last.divides else service.ShardingPolicy.OFF
        rows = last.dataset.apply(service.distribute(policy, address, job_name=job, compression=compression, **options))
    else:
        graphs[-1] = replace(graphs[-1], compression=compression)
        passes = Passes(address, job, name, graphs)
        rows = read_passes(passes, address, stages.spec, divides=last.divides, **options)
        if elements == tf.data.INFINITE_CARDINALITY:
            rows = rows.apply(tf.data.experimental.assert_cardinality(elements))
    return stages.finish(rows)


def parse_address(address: str) -> tuple[str, int]:
    """Returns host and port of ``grpc://host:port``. Raises UsageError."""
    protocol, found, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if not found or protocol != "grpc" or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{address!r} is not an address of a tf.data.service",
            hint="it has the form grpc://host:port; see Environment()",
        )
    return host.strip("[]"), int(port)


def await_dispatcher(address: str, endpoint: tuple[str, int], wait: float) -> None:
    """Waits until a gRPC server answers.

    Args:
        address: for messages.
        endpoint: host and port.
        wait: seconds.

    Raises:
        WorkersLost: none did.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            if _speaks_http2(endpoint, min(_ANSWER_SECONDS, max(_POLL, deadline - time.monotonic()))):
                return
            why = "something else than a tf.data.service is there"
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() >= deadline:
            raise WorkersLost(
                f"no tf.data.service answers at {address} within {wait:g} s: {why}",
                hint="in a job the agents start it: see the log of tf-dispatcher; elsewhere check the address",
            )
        time.sleep(_POLL)


def _speaks_http2(endpoint: tuple[str, int], seconds: float) -> bool:
    with socket.create_connection(endpoint, timeout=seconds) as connection:
        connection.sendall(_PREFACE)
        head = b""
        while len(head) < 9:
            chunk = connection.recv(9 - len(head))
            if not chunk:
                return False
            head += chunk
        return head[3] == _SETTINGS

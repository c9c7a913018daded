"""TensorFlow: a `tf.data.Dataset` that the job's tf.data.service makes.

`distribute` is `tf.data.experimental.service.distribute` with what a job knows: the address of the dispatcher, and a
name under which all ranks share one job of the service, so that a pipeline runs once and not once per rank. It finds
out early what TensorFlow would find late or never: a pipeline with Python functions, which cannot leave this process;
an address at which nothing answers, to which TensorFlow's client would talk without end; a name that is used twice,
which TensorFlow answers with an empty dataset; ranks that bring different pipelines, of which it runs one.

TensorFlow is imported when a function is called.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import replace
from typing import Any, TypeVar

from headrace.adapters.tensorflow_checks import (
    INSTEAD,
    check_cache,
    check_compression,
    check_consumer,
    check_dataset,
    check_elements,
    check_name,
    check_options,
    check_pipeline,
    check_rounds,
    check_variables,
    first_line,
    graph_of,
    mode_of,
    warn_shares,
)
from headrace.adapters.tensorflow_cut import Plan, plan_of, word_of
from headrace.adapters.tensorflow_likeness import likeness_of
from headrace.adapters.tensorflow_passes import Passes, StageGraph, cardinality_of, graph_of_pass, read_passes
from headrace.adapters.tensorflow_ranks import check_likeness, check_started_once, job_name, rank_name, ranks_of
from headrace.errors import PipelineError, UsageError, WorkersLost
from headrace.instance.environment import TF_DATA_SERVICE
from headrace.instance.paths import BASE_VARIABLE

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
    check_name(name)
    check_consumer(consumer_index, num_consumers)
    check_compression(compression)
    check_options(
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
        check_rounds(elements)
    graph = graph_of(dataset)
    check_pipeline(graph)
    check_elements(dataset.element_spec, word_of(dataset))  # type: ignore[attr-defined]
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
    check_pipeline(graph_of(dataset))
    check_elements(dataset.element_spec, word_of(dataset))
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

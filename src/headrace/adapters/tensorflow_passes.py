"""A pass over a dataset of several stages: what its workers run in it, and under which names.

tf.data.service counts the passes of the process that reads, and its workers begin every pass with the graph that was
registered. So a graph that reads another stage, or that shuffles, is registered for each pass:

* a node stands in it for the stage that it reads, and becomes one that reads the job of the pass;
* the seeds of a `shuffle` that shuffles anew in each iteration become those that one process would draw for its
  iteration of that number, so that an order is repeated in no pass and ``shuffle(n, seed).take(m)`` takes what it takes
  in one process. Below a `cache` every pass has the first order.

A `shuffle` without a seed that keeps its order gets one that follows from the data below it: two datasets that take
and skip elements of it on two hosts then complement each other.

All ranks number their passes from 0 and use names that follow from the dataset's name and the number, so they share the
jobs of a pass, and whoever comes first registers its graphs.

When a worker dies that makes a part for all, TensorFlow ends the pass as if that part had no more elements. So the part
registers a note at its end, a dataset that is never read, and a rank that has come to the end of the pass looks for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.adapters.tensorflow_likeness import dispatcher_id, note_of, sources_of
from headrace.errors import WorkersLost

_SHUFFLE = "ShuffleDatasetV3"  # of (dataset, buffer size, seed, seed2, generator)
_CACHES = ("CacheDataset", "CacheDatasetV2")
_SIDE_BY_SIDE = ("ZipDataset", "ConcatenateDataset", "DirectedInterleaveDataset")  # read each of their inputs once
_WORD = 0xFFFFFFFF
_AS_ONE, _READ = b"headrace: one element", b"headrace: read stage"
_ADDRESS = b"headrace: address"  # in the function that registers the note
_REGISTER = "RegisterDatasetV2"


def cardinality_of(dataset: Any) -> int:
    """Returns how many elements a dataset has, as TensorFlow counts; -2 (unknown) for a mixture that ends.

    TensorFlow takes a mixture for endless where one of its datasets is, also when the choices or another one end it.
    """
    count = int(dataset.cardinality())
    return -2 if count == -1 and _ends(dataset) else count


def _ends(dataset: Any) -> bool:
    kind, inputs = type(dataset).__name__, dataset._inputs()
    if kind == "_RepeatDataset" and int(dataset._count) == -1:
        return False
    if kind == "_DirectedInterleaveDataset":
        deciding = inputs if dataset._stop_on_empty_dataset else inputs[:1]
        if any(cardinality_of(source) != -1 for source in deciding):
            return True
    return any(_ends(source) for source in inputs)


def as_one(dataset: Any) -> Any:
    """Returns a dataset whose only source has one element, so that one worker makes all of it.

    One that ends registers a note then: `graph_of_pass` puts in where.
    """
    import tensorflow as tf

    one = tf.data.Dataset.from_tensors(_AS_ONE)
    if cardinality_of(dataset) == tf.data.INFINITE_CARDINALITY:
        return one.flat_map(lambda _: dataset)

    def elements(step: Any) -> Any:  # all of them, then the note and none
        return dataset.take(tf.cond(step == 0, lambda: tf.constant(-1, tf.int64), _register_note))

    rows = one.flat_map(lambda _: tf.data.Dataset.range(2).flat_map(elements))
    direct = tf.data.Options()  # nothing is held back here when the note is registered
    direct.experimental_optimization.inject_prefetch = False
    return rows.with_options(direct)


def _register_note() -> Any:
    """Registers the note that a part has come to its end, in a graph. Returns 0."""
    import tensorflow as tf
    from tensorflow.core.protobuf import data_service_pb2
    from tensorflow.python.saved_model import nested_structure_coder

    note = note_of("complete")
    structure = nested_structure_coder.encode_structure(note.element_spec).SerializeToString()
    identity = tf.raw_ops.RegisterDatasetV2(
        dataset=note._variant_tensor, address=_ADDRESS, protocol="", external_state_policy=1, requested_dataset_id="",
        metadata=data_service_pb2.DataServiceMetadata(element_spec=structure).SerializeToString(),
    )  # fmt: skip
    return tf.cast(tf.strings.length(identity), tf.int64) * 0


def read_stage(spec: Any) -> Any:
    """Returns what stands in a dataset for one that reads the stage before; `graph_of_pass` puts that in its place.

    Args:
        spec: of the stage's elements, which are dense.
    """
    import tensorflow as tf

    def nothing() -> Any:
        return tf.nest.map_structure(
            lambda leaf: tf.compat.v1.placeholder_with_default(
                tf.zeros([size or 0 for size in leaf.shape] if leaf.shape.rank else (), leaf.dtype), leaf.shape
            ),
            spec,
        )

    return tf.data.Dataset.from_tensors(_READ).map(lambda _: nothing())


@dataclass(frozen=True)
class StageGraph:
    """A stage that can be registered.

    Attributes:
        graph: its GraphDef.
        spec: of its elements.
        compression: of its elements on their way.
    """

    graph: Any
    spec: Any
    compression: str | None


class Passes:
    """The passes of this process over a dataset.

    Args:
        address: of the dispatcher.
        job: name of the dataset at the dispatcher.
        name: of the dataset, for messages.
        stages: in their order.
    """

    def __init__(self, address: str, job: str, name: str, stages: Sequence[StageGraph]) -> None:
        self._address, self._job, self._name, self._stages = address, job, name, tuple(stages)
        self._numbers = itertools.count()
        self._constant: dict[int, Any] = {}  # of stages whose graph is the same in every pass
        self._leaves_note = any(_registering(stage.graph) for stage in stages)

    def __call__(self) -> Iterator[tuple[bytes, bytes]]:
        """Begins the next pass: registers what it runs. Yields the dataset and the job to read, once."""
        number = next(self._numbers)
        jobs: list[tuple[bytes, bytes]] = []
        for stage, _ in enumerate(self._stages):
            jobs.append((self._register(stage, number, jobs), f"{self._job}/{stage}/{number}".encode()))
        yield jobs[-1]
        if self._leaves_note:
            self._check_note(number)

    def _identity(self, part: object, number: object) -> str:
        return f"headrace-{dispatcher_id(self._job)}-{part}-{number}"

    def _check_note(self, number: int) -> None:
        """Checks that the part which one worker makes came to its end; all ranks find the same.

        Raises:
            WorkersLost: it did not.
        """
        import tensorflow as tf

        try:
            tf.data.experimental.service.register_dataset(
                self._address, note_of("lost"), compression=None, dataset_id=self._identity("end", number)
            )
        except tf.errors.InvalidArgumentError:  # another note is there: "complete"
            return
        raise WorkersLost(
            f"pass {number + 1} of the dataset {self._name!r} ended too early: the worker of tf.data.service at "
            f"{self._address} that made its whole part died before it came to the end of that",
            hint="the log and the events name the worker (DataWorkerLost); the next pass is whole: start again from "
            "the last checkpoint. headrace.tensorflow.plan(dataset) shows the part",
        )

    def _register(self, stage: int, number: int, jobs: Sequence[tuple[bytes, bytes]]) -> bytes:
        import tensorflow as tf

        if stage in self._constant:
            return bytes(self._constant[stage])
        here = self._stages[stage]
        changes = _changes(here.graph)
        graph = graph_of_pass(here.graph, number, jobs, self._address, self._identity("end", number))
        wanted = self._identity(stage, number if changes else "all")
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
        dataset = tf.data.experimental.from_variant(variant, here.spec)
        registered = tf.data.experimental.service.register_dataset(
            self._address, dataset, compression=here.compression, dataset_id=wanted
        )
        identity = bytes(registered.numpy())
        if not changes:
            self._constant[stage] = identity
        return identity


def read_passes(passes: Passes, address: str, spec: Any, *, divides: bool, **options: Any) -> Any:
    """Returns a dataset each of whose iterations is the next pass.

    Args:
        passes: what begins a pass.
        address: of the dispatcher.
        spec: of the elements of the last stage.
        divides: as in `headrace.adapters.tensorflow_cut.Stage`.
        options: as `tf.data.experimental.service.from_dataset_id` has them.
    """
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops.data_service_ops import _from_dataset_id

    policies = tf.data.experimental.service.ShardingPolicy
    policy = policies.DYNAMIC if divides else policies.OFF
    text = tf.TensorSpec((), tf.string)
    head = tf.data.Dataset.from_generator(passes, output_signature=(text, text))
    rows = head.flat_map(lambda dataset, job: _from_dataset_id(policy, address, dataset, spec, job_name=job, **options))
    whole = tf.data.Options()  # tf.distribute would take a part of what is a rank's part already
    whole.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return rows.with_options(whole)


def _changes(graph: Any) -> bool:
    """Tells whether a graph must be registered anew for each pass."""
    reads = any(_text(node) == _READ for node in graph.node) or bool(_registering(graph))
    return reads or any(shuffle.reshuffles and shuffle.seeded and not shuffle.cached for shuffle in _shuffles(graph))


def _registering(graph: Any) -> list[Any]:
    """Returns the functions that register a note."""
    return [
        function
        for function in graph.library.function
        if any(node.op == "Const" and _text(node) == _ADDRESS for node in function.node_def)
    ]


def graph_of_pass(
    graph: Any, number: int, jobs: Sequence[tuple[bytes, bytes]] = (), address: str = "", note: str = ""
) -> Any:
    """Returns the graph that workers run in a pass.

    Args:
        graph: a GraphDef.
        number: of the pass, from 0.
        jobs: dataset and job of each earlier stage.
        address: of the dispatcher.
        note: id of the dataset that is registered when the part of one worker ends.
    """
    result = type(graph).FromString(graph.SerializeToString())
    nodes = {node.name: node for node in result.node}
    for node in list(result.node):
        if node.op == "MapDataset" and _input_text(node, nodes) == _READ:
            _put_reader(result, node, *jobs[-1], address)
    for function in _registering(result):
        _put_note(function, address, note)
    for shuffle in _shuffles(result):
        node = nodes[shuffle.name]
        iteration = 0 if shuffle.cached else number
        if shuffle.seeded and shuffle.reshuffles:
            first = not shuffle.once and not iteration
            seeds = shuffle.seeds if first else iteration_seeds(*shuffle.seeds, iteration)
        elif not shuffle.seeded and (shuffle.cached or not shuffle.reshuffles):
            seeds = shuffle.own_seeds(graph)
        else:
            seeds = shuffle.seeds
        if seeds != shuffle.seeds:
            for place, seed in zip((2, 3), seeds, strict=True):
                signed = seed - (1 << 64) if seed >= 1 << 63 else seed
                node.input[place] = _add_constant(result, f"{node.name}/headrace_seed_{place}", signed)
        if not shuffle.reshuffles or (shuffle.seeded and shuffle.once):
            _keep_order(node)
    return result


def iteration_seeds(first: int, second: int, iteration: int) -> tuple[int, int]:
    """Returns the seeds that TensorFlow's `shuffle` draws for an iteration.

    They are two numbers of Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011), whose key
    is the first seed and the upper half of whose counter is the second.
    """
    block, place = divmod(2 * iteration, 4)
    keys = [first & _WORD, (first >> 32) & _WORD]
    words = [block & _WORD, (block >> 32) & _WORD, second & _WORD, (second >> 32) & _WORD]
    for _ in range(10):
        low, high = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            (high >> 32) ^ words[1] ^ keys[0], high & _WORD, (low >> 32) ^ words[3] ^ keys[1], low & _WORD,
        ]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & _WORD, (keys[1] + 0xBB67AE85) & _WORD]
    return words[place], words[place + 1]


@dataclass(frozen=True)
class _Shuffle:
    """A `shuffle` of a graph.

    Attributes:
        name: of its node.
        seeds: as the user gave them; zeros for none.
        reshuffles: each iteration has an order of its own.
        once: it is iterated once in a pass.
        cached: what it makes is kept for all passes.
        below: the nodes from which its elements come.
    """

    name: str
    seeds: tuple[int, int]
    reshuffles: bool
    once: bool
    cached: bool
    below: frozenset[str]

    @property
    def seeded(self) -> bool:
        """Whether the user gave a seed."""
        return self.seeds != (0, 0)

    def own_seeds(self, graph: Any) -> tuple[int, int]:
        """Returns seeds that follow from the data below."""
        digest = sources_of([node for node in graph.node if node.name in self.below])
        return int(digest[:8], 16) | 1, int(digest[8:16], 16)


def _shuffles(graph: Any) -> list[_Shuffle]:
    """Returns the shuffles of the outer graph. Those in functions are made anew for each element, here and anywhere."""
    nodes = {node.name: node for node in graph.node}
    readers: dict[str, list[tuple[Any, int]]] = {}
    for node in graph.node:
        for place, source in enumerate(node.input):
            readers.setdefault(source.partition(":")[0].lstrip("^"), []).append((node, place))
    shuffles = []
    for node in graph.node:
        if node.op == _SHUFFLE:
            seeds = tuple(_number(nodes[node.input[place].partition(":")[0]]) for place in (2, 3))
            above = list(_above(node.name, readers))
            once = all(
                reader.op != "RepeatDataset"
                and (place == 0 or reader.op in _SIDE_BY_SIDE or _input_text(reader, nodes) == _AS_ONE)
                for reader, place in above
            ) and len(above) == len({reader.name for reader, _ in above})
            cached = any(reader.op in _CACHES for reader, _ in above)
            reshuffles = bool(node.attr["reshuffle_each_iteration"].b)
            below = frozenset(_below(node.name, nodes))
            shuffles.append(_Shuffle(node.name, (seeds[0], seeds[1]), reshuffles, once, cached, below))
    return shuffles


def _above(name: str, readers: dict[str, list[tuple[Any, int]]]) -> Iterator[tuple[Any, int]]:
    for node, place in readers.get(name, ()):
        yield node, place
        yield from _above(node.name, readers)


def _below(name: str, nodes: dict[str, Any]) -> Iterator[str]:
    yield name
    for source in nodes[name].input:
        yield from _below(source.partition(":")[0].lstrip("^"), nodes)


def _text(node: Any) -> bytes:
    tensor = node.attr["value"].tensor
    return bytes(tensor.string_val[0]) if node.op == "Const" and len(tensor.string_val) == 1 else b""


def _input_text(node: Any, nodes: dict[str, Any]) -> bytes:
    """Returns the text from which a node's dataset is made; b"" when there is none."""
    source = nodes.get(node.input[0]) if node.input else None
    constant = nodes.get(source.input[0]) if source is not None and source.op == "TensorDataset" else None
    return b"" if constant is None else _text(constant)


def _put_reader(graph: Any, node: Any, dataset: bytes, job: bytes, address: str) -> None:
    """Makes a node one that reads a job of the service."""
    protocol, _, endpoint = address.partition("://")
    dynamic = b"\x08\x01"  # a ProcessingModeDef
    values: dict[str, bytes | int] = {
        "dataset_id": dataset, "processing_mode": dynamic, "address": endpoint.encode(), "protocol": protocol.encode(),
        "job_name": job, "consumer_index": -1, "num_consumers": -1, "max_outstanding_requests": -1,
    }  # fmt: skip
    function = node.attr["f"].func.name
    for key in {*node.attr} - {"output_types", "output_shapes"}:
        del node.attr[key]
    node.op = "DataServiceDatasetV4"
    node.input[:] = [_add_constant(graph, f"{node.name}/{word}", value) for word, value in values.items()]
    node.input.append(graph.node.add(name=f"{node.name}/counter", op="DummyIterationCounter").name)
    node.attr["uncompress_fn"].func.name = function
    node.attr["uncompress"].b = False


def _add_constant(graph: Any, name: str, value: bytes | int) -> str:
    """Adds a node of a text or a whole number to a graph. Returns its name."""
    import tensorflow as tf

    constant, kind = graph.node.add(name=name, op="Const"), tf.string if isinstance(value, bytes) else tf.int64
    constant.attr["dtype"].type = kind.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, kind, ()))
    return name


def _put_note(function: Any, address: str, note: str) -> None:
    """Makes a function one that registers the note of a pass."""
    import tensorflow as tf

    protocol, _, endpoint = address.partition("://")
    nodes = {node.name: node for node in function.node_def}
    for node in function.node_def:
        if node.op == _REGISTER:
            node.attr["requested_dataset_id"].s = note.encode()
            for place, value in ((1, endpoint), (2, protocol)):
                constant = nodes[node.input[place].partition(":")[0]]
                constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value.encode(), tf.string, ()))


def _number(node: Any) -> int:
    import tensorflow as tf

    return int(tf.make_ndarray(node.attr["value"].tensor)) if node.op == "Const" else 0


def _keep_order(node: Any) -> None:
    """Makes a shuffle one that does not reshuffle.

    Of the third version TensorFlow 2.21 forgets that when it writes a dataset that it has read from a graph.
    """
    node.op = "ShuffleDataset"
    node.attr["reshuffle_each_iteration"].b = False
    del node.input[4:]

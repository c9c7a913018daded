"""Where a tf.data pipeline may be divided among the workers of tf.data.service, so that its data stays what it is.

TensorFlow divides a pipeline at its sources: every worker gets a part of each source's elements and runs all operations
on them. That is right for what treats every element of *one* source alone. Two sources are divided each by itself, so
that `zip` pairs what does not belong together; and what counts (`take`, `enumerate`, `window`) counts on every worker.

So a pipeline becomes a chain of *stages*, each a dataset that the service makes:

* a *divided* stage is made by all workers: of one source whose elements are handed out, or of what an earlier stage
  hands out, each element to one worker;
* a *whole* stage is made by one worker, once: as the one element of a source of one element, which cannot be divided.

`plan_of` walks the dataset from its sources to its end. Operations that only choose or order elements (zip, shuffle,
take, skip, repeat, batch ...) do not look into them, so they may run before a `map` that stands before them: the whole
stage makes small elements, and the maps behind it are divided. What must see the elements of a map or a filter in
their order (`unique`, `window`, `scan`, a `take` behind a `filter`) is made whole together with them.

TensorFlow's objects are read by the names of their classes; one that is not known here is made whole, which is always
right. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace.adapters.tensorflow_passes import as_one, cardinality_of, read_stage

Elements = Callable[[Any], Any]  # from a dataset to a dataset
Element = Callable[[Any], Any]  # from an element to an element

CHUNK = 16  # elements of a whole stage that travel together: a call of the service costs about a millisecond
_SMALL = 1 << 12  # bytes of a constant that may travel with every element
_CHUNK_BYTES = 1 << 18

# Sources of which TensorFlow 2.21 hands out parts. All others are made whole.
_DIVISIBLE = {
    "_TensorSliceDataset",
    "_TensorDataset",
    "_RangeDataset",
}
_READERS = {"TFRecordDatasetV2", "TextLineDatasetV2", "FixedLengthRecordDatasetV2"}  # flat_map() of their files
_MAPS = {"_MapDataset", "_ParallelMapDataset"}
_FLATTENING = {
    "_FilterDataset",
    "_FlatMapDataset",
    "_InterleaveDataset",
    "_ParallelInterleaveDataset",
    "ParallelInterleaveDataset",
    "_UnbatchDataset",
    "_IgnoreErrorsDataset",
}
_BATCHES = {"_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset", "_DenseToSparseBatchDataset"}
_TRANSPARENT = {"_PrefetchDataset", "_OptionsDataset", "_AssertCardinalityDataset", "_ModelDataset"}
_COUNTING = {"_TakeDataset", "_SkipDataset", "_ShardDataset"}
_WORDS = {
    "_DirectedInterleaveDataset": "choose_from_datasets",
    "_DenseToRaggedDataset": "ragged_batch",
    "_DenseToSparseBatchDataset": "dense_to_sparse_batch",
    "_GroupByWindowDataset": "group_by_window",
    "_TensorSliceDataset": "from_tensor_slices",
    "_TensorDataset": "from_tensors",
}


@dataclass(frozen=True)
class Operation:
    """What an operation is called in a message.

    Attributes:
        name: TensorFlow's.
        function: the place of the user's function; "" for none.
    """

    name: str
    function: str = ""

    def __str__(self) -> str:
        return f"{self.name} (function at {self.function})" if self.function else self.name


@dataclass(frozen=True)
class Stage:
    """A dataset that the service makes.

    Attributes:
        dataset: with all operations of the stage; reads earlier stages under `stage_token`.
        whole: one worker makes it; else it is divided among all.
        divides: its source's elements are handed out (TensorFlow's DYNAMIC); else every worker runs it, on what an
            earlier stage hands out.
        words: what it does.
    """

    dataset: Any
    whole: bool
    divides: bool
    words: str


@dataclass(frozen=True)
class Plan:
    """How a dataset is made.

    Attributes:
        stages: in their order; the trainers read the last one.
        spec: of the elements that they read.
        finish: what the trainer does with the elements of the last stage, mostly nothing.
        costly: operations with a function of the user's in a whole stage, that one worker therefore makes alone.
    """

    stages: tuple[Stage, ...]
    spec: Any
    finish: Elements
    costly: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [
            f"{number}. {'one worker, once' if stage.whole else 'all workers, divided'}: {stage.words}"
            for number, stage in enumerate(self.stages, 1)
        ]
        return "\n".join([*lines, self.advice] if self.costly else lines)

    @property
    def advice(self) -> str:
        """What to do about what is costly, in words."""
        return (
            f"one worker alone runs {_joined(self.costly)}, because an operation behind needs those elements in "
            "their order: put take, skip, enumerate, zip and the like before them, and they are divided"
        )


@dataclass(frozen=True)
class _Late:
    """A batch at the end: workers make `rows` divided, and who reads them makes the batches."""

    rows: _Stream
    finish: Elements


@dataclass(frozen=True)
class _Stream:
    """A part of the pipeline, in two forms.

    Attributes:
        node: the part as the user wrote it.
        raw: what has to be made whole.
        function: what is to be done with each element of `raw` behind it; None: nothing.
        tail: operations behind `function`, which make any number of elements of one.
        divisible: `node` is a function of the elements of one source, each alone.
        constants: each element of `raw` holds a constant that is not small.
        late: how it is made when nothing else follows.
        whole_words, divided_words, all_words: what `raw` does, what the others do, and all of it.
    """

    node: Any
    raw: Any
    function: Element | None = None
    tail: tuple[Elements, ...] = ()
    divisible: bool = False
    constants: bool = False
    late: _Late | None = None
    whole_words: tuple[Operation, ...] = ()
    divided_words: tuple[Operation, ...] = ()
    all_words: tuple[Operation, ...] = ()

    @property
    def costly(self) -> tuple[Operation, ...]:
        """As in `Plan`, of `raw`."""
        return tuple(word for word in self.whole_words if word.function)


def plan_of(dataset: Any, mode: str, *, rounds: bool) -> Plan:
    """Returns how a dataset is to be made, so that its elements are those that one process makes.

    Args:
        dataset: the user's.
        mode: ``dynamic``; or ``off``, with which every worker makes all of it.
        rounds: the last stage must itself be without an end, because it is read in rounds or through a cache.
    """
    planner = _Planner(rounds)
    return planner.plan(dataset) if mode == "dynamic" else planner.plan_for_each(dataset)


class _Planner:
    def __init__(self, rounds: bool) -> None:
        self._rounds = rounds
        self._streams: dict[int, _Stream] = {}

    def plan(self, dataset: Any) -> Plan:
        stream = self._stream(dataset)
        late = None if self._rounds else stream.late
        rows, finish = (stream, _unchanged) if late is None else (late.rows, late.finish)
        spec = rows.node.element_spec
        costly = () if rows.divisible else rows.costly
        return Plan(self._stages(rows), wire_spec(spec), lambda elements: finish(unwired(elements, spec)), costly)

    def plan_for_each(self, dataset: Any) -> Plan:
        """Plans for workers that make all of it, each."""
        spec, words = dataset.element_spec, _joined(self._stream(dataset).all_words)
        stage = Stage(wired(dataset), False, False, words)
        return Plan((stage,), wire_spec(spec), lambda elements: unwired(elements, spec), ())

    def _stages(self, stream: _Stream) -> tuple[Stage, ...]:
        """Returns the stages that make a stream."""
        if stream.divisible:
            return (Stage(wired(stream.node), False, True, _joined(stream.all_words)),)
        words = _joined(stream.whole_words)
        if stream.function is None and not stream.tail:
            return (Stage(wired(as_one(stream.raw)), True, True, words),)
        chunked = _chunked(stream.raw)
        first = Stage(wired(as_one(chunked)), True, True, words)
        divided = unwired(read_stage(wire_spec(chunked.element_spec)), chunked.element_spec)
        if chunked is not stream.raw:
            divided = _unchunked(divided)
        if stream.function is not None:
            divided = _mapped(divided, stream.function)
        for operation in stream.tail:
            divided = operation(divided)
        return first, Stage(wired(divided), False, False, _joined(stream.divided_words))

    def _stream(self, dataset: Any) -> _Stream:
        stream = self._streams.get(id(dataset))
        if stream is None:
            kind = type(dataset).__name__
            if kind in _READERS:
                return replace(self._stream(dataset._impl), node=dataset)
            if kind == "_RestructuredDataset":  # what unbatch() and rebatch() put before themselves, behind a map()
                return replace(self._stream(dataset._inputs()[0]._inputs()[0]), node=dataset)
            inputs = [self._stream(source) for source in dataset._inputs()]
            stream = self._step(kind, dataset, inputs)
            stream = replace(stream, all_words=_words("all_words", inputs, dataset))
            self._streams[id(dataset)] = stream
        return stream

    def _step(self, kind: str, node: Any, inputs: list[_Stream]) -> _Stream:
        if kind in _DIVISIBLE and not inputs:
            constants = kind == "_TensorDataset" and _bytes(node.element_spec) > _SMALL
            return _Stream(node, node, divisible=True, constants=constants, whole_words=(word_of(node),))
        if len(inputs) == 1:
            [source] = inputs
            if kind in _MAPS or kind in _FLATTENING:
                return self._apply(kind, node, source)
            if kind in _TRANSPARENT:
                asserts = kind == "_AssertCardinalityDataset"  # which counts on every worker
                return replace(source, node=node, divisible=source.divisible and not asserts)
            if kind in _REORDERING and not (kind == "CacheDataset" and node._filename.numpy()):
                return self._reorder(kind, node, source)
            if kind in _BATCHES:
                return self._batch(kind, node, source)
        if kind == "_ZipDataset":
            return self._zip(node, inputs)
        if kind in ("_ConcatenateDataset", "_DirectedInterleaveDataset"):
            return self._merge(kind, node, inputs)
        return self._whole(node, inputs)

    def _whole(self, node: Any, inputs: list[_Stream], *, divisible: bool = False) -> _Stream:
        """Makes a part as the user wrote it, in one place."""
        return _Stream(node, node, divisible=divisible, whole_words=_words("all_words", inputs, node))

    def _apply(self, kind: str, node: Any, source: _Stream) -> _Stream:
        """Adds a function of single elements."""
        if source.constants or not travels(source.raw.element_spec):
            return self._whole(node, [source], divisible=source.divisible)
        stream = replace(source, node=node, divided_words=(*source.divided_words, word_of(node)), late=None)
        if kind in _MAPS and not source.tail:
            call, before = caller(node._map_func), source.function
            return replace(stream, function=call if before is None else lambda element: call(before(element)))
        return replace(stream, tail=(*source.tail, flattener(node)))

    def _whole_step(self, node: Any, source: _Stream, raw: Any, *, divisible: bool = False) -> _Stream:
        words = (*source.whole_words, word_of(node))
        return replace(source, node=node, raw=raw, divisible=divisible, whole_words=words, late=None)

    def _reorder(self, kind: str, node: Any, source: _Stream) -> _Stream:
        """Chooses or orders elements, or keeps them."""
        operation, late = partial(_REORDERING[kind], node), None
        if source.tail and kind in _COUNTING:
            return self._whole(node, [source])
        if source.late is not None and kind in ("_RepeatDataset", "_ShuffleDataset"):
            before = source.late.finish
            late = _Late(source.late.rows, lambda rows: operation(before(rows)))
        if (
            source.tail and kind == "CacheDataset"
        ):  # in a pass of its own it would only keep what a repeat() makes again
            return replace(source, node=node, late=None)
        if source.tail and kind == "_ShuffleDataset":
            words = (*source.divided_words, word_of(node))
            return replace(source, node=node, tail=(*source.tail, operation), divided_words=words, late=late)
        divisible = source.divisible and kind not in _COUNTING
        return replace(self._whole_step(node, source, operation(source.raw), divisible=divisible), late=late)

    def _zip(self, node: Any, inputs: list[_Stream]) -> _Stream:
        import tensorflow as tf
        from tensorflow.python.data.util import nest

        parts = [_in_order(source) for source in inputs]
        functions = [part.function for part in parts]
        raw = tf.data.Dataset.zip(nest.pack_sequence_as(node._datasets, [part.raw for part in parts]))

        def function(elements: Any) -> Any:
            values = nest.flatten_up_to(node._datasets, elements)
            return nest.pack_sequence_as(
                node._datasets,
                [value if do is None else do(value) for do, value in zip(functions, values, strict=True)],
            )

        whole = all(do is None for do in functions)
        return _of_parts(node, raw, parts, None if whole else function)

    def _merge(self, kind: str, node: Any, inputs: list[_Stream]) -> _Stream:
        """Of several datasets each element is of one: it carries the number of that one, which says what to do."""
        import tensorflow as tf

        directed = kind == "_DirectedInterleaveDataset"
        parts = [_in_order(source) for source in (inputs[1:] if directed else inputs)]
        specs = [part.raw.element_spec for part in parts]
        alike = all(spec == specs[0] for spec in specs) and travels(specs[0])
        if not alike or any(part.constants for part in parts) or all(part.function is None for part in parts):
            return self._whole(node, inputs)
        branches = [part.function or (lambda element: element) for part in parts]
        tagged = [_mapped(part.raw, _tagged_with(number)) for number, part in enumerate(parts)]
        if directed:
            raw = tf.data.Dataset.choose_from_datasets(tagged, inputs[0].node, node._stop_on_empty_dataset)
        else:
            raw = tagged[0].concatenate(tagged[1])

        def function(pair: Any) -> Any:
            number, element = pair
            return tf.switch_case(number, [lambda branch=branch: branch(element) for branch in branches])

        return _of_parts(node, raw, parts, function)

    def _batch(self, kind: str, node: Any, source: _Stream) -> _Stream:
        plain = kind in ("_BatchDataset", "_ParallelBatchDataset")
        stream = self._vectorised(node, source, plain)
        if source.divisible and cardinality_of(source.node) == -1:  # has no last batch
            return replace(stream, divisible=True)
        if (not source.divisible and not source.tail) or not travels(source.node.element_spec):
            return stream
        if not plain or not dense(source.node.element_spec):
            return replace(stream, late=_Late(source, batcher(kind, node)))
        size, drop, word = node._batch_size, node._drop_remainder, word_of(node)
        batches = replace(  # workers make batches too; only short ones are made anew
            source, node=source.node.batch(size), tail=(*source.tail, lambda rows: rows.batch(size)),
            all_words=(*source.all_words, word), divided_words=(*source.divided_words, word),
        )  # fmt: skip
        return replace(stream, late=_Late(batches, lambda rows: rows.rebatch(size, drop)))

    def _vectorised(self, node: Any, source: _Stream, plain: bool) -> _Stream:
        """Batches what is small; the maps work inside of a batch."""
        import tensorflow as tf

        if source.tail or not dense(source.raw.element_spec):
            return self._whole(node, [source])
        size, before = node._batch_size, source.function
        drop = getattr(node, "_drop_remainder", False)
        raw = source.raw.batch(size, drop)
        if plain and before is None:
            return self._whole_step(node, source, raw)
        rebuild = batcher(type(node).__name__, node)

        def function(batch: Any) -> Any:
            rows = tf.data.Dataset.from_tensor_slices(batch)
            if before is not None:  # prefetch() keeps TensorFlow from fusing map and batch, which fails with a table
                rows = _mapped(rows, before, parallel=False).prefetch(1)
            return rebuild(rows).get_single_element()

        stream = self._whole_step(node, source, raw)
        return replace(stream, function=function, divided_words=(*source.divided_words, word_of(node)))


def _words(of: str, parts: Sequence[_Stream], node: Any) -> tuple[Operation, ...]:
    """Returns what some parts do, each operation once, and what comes behind them."""
    return (*dict.fromkeys(word for part in parts for word in getattr(part, of)), word_of(node))


def _of_parts(node: Any, raw: Any, parts: Sequence[_Stream], function: Element | None) -> _Stream:
    """Returns a stream whose `raw` is made of those of its parts, and whose function runs theirs."""
    return _Stream(
        node, raw, function=function, constants=any(part.constants for part in parts),
        whole_words=_words("whole_words", parts, node),
        divided_words=tuple(dict.fromkeys(word for part in parts for word in part.divided_words)),
    )  # fmt: skip


def _in_order(source: _Stream) -> _Stream:
    """Returns a stream whose elements come one for one in the order that the user wrote."""
    return source if not source.tail else _Stream(source.node, source.node, whole_words=source.all_words)


def _unchanged(elements: Any) -> Any:
    return elements


def wire_spec(spec: Any) -> Any:
    """Returns the specification of elements on their way: ragged and sparse tensors travel as their parts."""
    leaves = _leaves(spec)
    import tensorflow as tf

    return spec if len(leaves) == len(tf.nest.flatten(spec)) else tuple(leaves)


def wired(dataset: Any) -> Any:
    """Returns a dataset of the elements that travel."""
    spec = dataset.element_spec
    return dataset if wire_spec(spec) is spec else _mapped(dataset, lambda element: tuple(_leaves(element)))


def unwired(elements: Any, spec: Any) -> Any:
    """Returns a dataset of what `wired` was made of, whose elements have a specification."""
    import tensorflow as tf

    if wire_spec(spec) is spec:
        return elements
    return elements.map(lambda *leaves: tf.nest.pack_sequence_as(spec, leaves, expand_composites=True))


def _tagged_with(number: int) -> Element:
    import tensorflow as tf

    return lambda element: (tf.constant(number), element)


def _joined(words: tuple[Operation, ...]) -> str:
    return ", ".join(dict.fromkeys(map(str, words)))


def _mapped(dataset: Any, function: Element, *, parallel: bool = True) -> Any:
    """Maps whole elements: a tuple is one argument."""
    import tensorflow as tf

    return dataset.map(_spread(dataset, function), num_parallel_calls=tf.data.AUTOTUNE if parallel else None)


def _leaves(spec: Any) -> list[Any]:
    import tensorflow as tf

    return list(tf.nest.flatten(spec, expand_composites=True))


def travels(spec: Any) -> bool:
    """Tells whether elements of a specification can go from one process to another: no datasets, no optionals, no rows
    of a ragged tensor that have lost their raggedness (TensorFlow gives them as variants)."""
    import tensorflow as tf

    rows = (leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.RaggedTensorSpec))
    if any(leaf.ragged_rank == 0 for leaf in rows):
        return False
    return all(leaf.dtype not in (tf.variant, tf.resource) for leaf in _leaves(spec))


def dense(spec: Any) -> bool:
    """Tells whether all elements have the same shapes, and are no ragged or sparse tensors."""
    import tensorflow as tf

    leaves = tf.nest.flatten(spec)
    return all(isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined() for leaf in leaves) and travels(spec)


def _bytes(spec: Any) -> int:
    sizes = [(leaf.shape.num_elements() or 1) * max(leaf.dtype.size or 0, 1) for leaf in _leaves(spec)]
    return sum(sizes)


def _chunked(raw: Any) -> Any:
    """Returns several elements at a time, where they are small and there are many."""
    count, spec = int(raw.cardinality()), raw.element_spec
    if not dense(spec) or _bytes(spec) * CHUNK > _CHUNK_BYTES or 0 <= count < CHUNK * CHUNK:
        return raw
    return raw.batch(CHUNK)


def _unchunked(chunks: Any) -> Any:
    import tensorflow as tf

    return chunks.flat_map(_spread(chunks, tf.data.Dataset.from_tensor_slices))


def caller(wrapper: Any) -> Element:
    """Returns the function of a dataset's operation, as one of whole elements."""
    from tensorflow.python.data.util import structure

    def call(element: Any) -> Any:
        arguments = structure.to_tensor_list(wrapper._input_structure, element)
        results = wrapper.function(*arguments)
        if not isinstance(results, (list, tuple)):
            results = [results]
        return structure.from_compatible_tensor_list(wrapper.output_structure, list(results))

    return call


def flattener(node: Any) -> Elements:
    """Returns the operation of a dataset that makes elements of single ones, to be used on another dataset."""
    kind = type(node).__name__
    if kind == "_UnbatchDataset":
        return lambda rows: rows.unbatch()
    if kind == "_IgnoreErrorsDataset":
        return lambda rows: rows.ignore_errors()
    if kind == "_FilterDataset":
        keep = caller(node._predicate)
        return lambda rows: rows.filter(_spread(rows, keep))
    call = caller(node._map_func)
    if kind in _MAPS:
        return lambda rows: _mapped(rows, call)
    if kind == "_FlatMapDataset":
        return lambda rows: rows.flat_map(_spread(rows, call))
    cycle, block = int(node._cycle_length), int(node._block_length)
    parallel = {"_InterleaveDataset": None, "ParallelInterleaveDataset": cycle}.get(kind, -1)
    return lambda rows: rows.interleave(_spread(rows, call), cycle, block, parallel)


def _spread(rows: Any, function: Element) -> Callable[..., Any]:
    if type(rows.element_spec) is tuple:
        return lambda *element: function(element)
    return function


def batcher(kind: str, node: Any) -> Elements:
    """Returns the operation of a dataset that makes batches, to be used on another dataset."""
    if kind == "_PaddedBatchDataset":
        return lambda rows: rows.padded_batch(
            node._batch_size, node._padded_shapes, node._padding_values, node._drop_remainder
        )
    if kind == "_DenseToSparseBatchDataset":
        return lambda rows: rows.sparse_batch(node._batch_size, node._row_shape)
    return lambda rows: rows.batch(node._batch_size, node._drop_remainder)


def shuffled(node: Any, rows: Any) -> Any:
    """Shuffles with the buffer and the seeds of another shuffle."""
    import tensorflow as tf

    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=rows._variant_tensor, buffer_size=node._buffer_size, seed=node._seed, seed2=node._seed2,
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=bool(node._reshuffle_each_iteration),
        **rows._flat_structure,
    )  # fmt: skip
    return tf.data.experimental.from_variant(variant, rows.element_spec)


_REORDERING: dict[str, Callable[[Any, Any], Any]] = {  # what does not look into elements: of its node and a dataset
    "_TakeDataset": lambda node, rows: rows.take(node._count),
    "_SkipDataset": lambda node, rows: rows.skip(node._count),
    "_ShardDataset": lambda node, rows: rows.shard(node._num_shards, node._index),
    "_RepeatDataset": lambda node, rows: rows.repeat(node._count),
    "_ShuffleDataset": shuffled,
    "CacheDataset": lambda _, rows: rows.cache(),
}


def word_of(node: Any) -> Operation:
    """Returns what an operation is called in a message."""
    kind = type(node).__name__
    name = _WORDS.get(kind)
    if name is None:
        bare = kind.strip("_").replace("Dataset", "").removesuffix("V2").replace("Parallel", "")
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in bare).lstrip("_")
        name = name.replace("t_f_record", "TFRecordDataset")
    for wrapper in node._functions():
        code = getattr(getattr(wrapper, "_func", None), "__code__", None)
        if code is not None and "/tensorflow/python/" not in code.co_filename:
            return Operation(name, f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}")
    return Operation(name)

"""What two ranks' pipelines have to have in common when they share one job of tf.data.service.

The service makes the elements of one pipeline only: that of the first rank. A rank with another pipeline silently gets
elements of the first one, and data that only its own pipeline reads are never read: half of the data when two ranks
call ``shard(world, rank)``.

A serialised graph cannot be compared byte for byte: names of functions count what a process has traced before, names of
resources are new in every process, and what is random (the state of a Keras layer without a seed) or without an order
(the rows of a lookup table) may differ between equal pipelines. So a pipeline becomes a few facts:

* *elements, structure, shards, counts, sources*: what cannot differ between equal pipelines. A source is an array of
  any type and shape from which a dataset is made, whose rows may be in any order; of texts, which may be names of
  files, what is behind the directory. A count is that of a `take` or `skip`.
* *seeds*: other seeds are another order.
* *rest* (operations, their attributes, all other constants; no names, no wiring beyond the operations that are next to
  each other): a filter that keeps each rank's own half differs here. Without variables, tables and handles, and without
  what only makes a pipeline faster: sizes of buffers, numbers of parallel calls.

The ranks compare these facts at the dispatcher, which all of them can reach. The dispatcher keeps a dataset that is
registered under a given id, in its journal too, and refuses another one under that id unless the structure of its
elements is the same. So the first rank registers a dataset of one element that is never read, whose structure is a
dict with one key: the facts of its pipeline, as JSON. The later ranks find them there.

In the same way each rank says which process it is. A dispatcher that outlives a training knows its passes, as far as
they were read, and would hand out the rest of them, or nothing, to the process that is started in its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headrace.errors import UsageError

_SHARD = "ShardDataset"  # of (dataset, number of shards, index)
_SEEDS = {  # places of the two seeds among the inputs
    "ShuffleDataset": (2, 3),
    "ShuffleDatasetV3": (2, 3),
    "ShuffleAndRepeatDataset": (2, 3),
    "ShuffleAndRepeatDatasetV2": (2, 3),
    "RandomDataset": (0, 1),
    "RandomDatasetV2": (0, 1),
}
_COUNTS = {"TakeDataset": "take", "SkipDataset": "skip"}  # of (dataset, count)
_TUNING = {  # places of the inputs that change nothing but the speed, from the end
    "ParallelMapDatasetV2": (-1,),
    "ParallelBatchDataset": (2,),
    "ParallelInterleaveDatasetV4": (-1, -2, -3),
    "PrefetchDataset": (1,),
    "ShuffleDatasetV3": (1,),
}
_SEED_ATTRIBUTES = ("seed", "seed2")
# Names that are new in every process, and options of TensorFlow's own.
_LEFT_OUT = {"shared_name", "container", "debug_name", "allowed_devices", "metadata", "config", "config_proto"}
_STATE = re.compile(r"Assign.*VariableOp|.*TableImport(V2)?|InitializeTable.*")  # their inputs fill a resource
_DATASET = re.compile(r".*Dataset(V\d+)?$")


@dataclass(frozen=True)
class Likeness:
    """Facts about a pipeline, all of them short texts.

    Attributes:
        elements: how many it has; empty when it is infinite or unknown.
        structure: of its elements.
        shards: ``index of count`` of every `shard`.
        counts: of every `take` and `skip`.
        sources: digest of what the datasets are made from.
        seeds: digest of the seeds.
        rest: digest of all the rest.
    """

    elements: str
    structure: str
    shards: str
    counts: str
    sources: str
    seeds: str
    rest: str


def likeness_of(graph: Any, elements: int, structure: str, base: str = "") -> Likeness:
    """Returns the facts of a pipeline.

    Args:
        graph: its GraphDef.
        elements: its cardinality; negative when it is infinite or unknown.
        structure: of its elements.
        base: directory of this host's tree, which hosts of one job may have at different places; "" for none.
    """
    bodies = [list(graph.node), *(list(function.node_def) for function in graph.library.function)]
    shards, counts, seeds, sources, rest = [], [], [], [], []
    for number, body in enumerate(bodies):
        found = _Body(body, base)
        shards += found.shards
        counts += found.counts
        seeds += found.seeds
        rest += found.rest
        sources += found.sources if number == 0 else []
    return Likeness(
        elements=str(elements) if elements >= 0 else "",
        structure=structure,
        shards=", ".join(sorted(shards)),
        counts=", ".join(sorted(counts)),
        sources=_digest(sources),
        seeds=_digest(seeds),
        rest=_digest(rest),
    )


def sources_of(nodes: Sequence[Any]) -> str:
    """Returns the digest of what the datasets of some nodes are made from."""
    return _digest(_Body(nodes, "").sources)


def certain_differences(here: Likeness, there: Likeness) -> list[str]:
    """Says what is different between two pipelines and makes their data different, in words; may be empty."""
    words = []
    if here.shards != there.shards:
        words.append(f"shard {here.shards or 'none'}, there {there.shards or 'none'}")
    if here.counts != there.counts:
        words.append(f"{here.counts or 'no take or skip'}, there {there.counts or 'none'}")
    if here.elements != there.elements:
        words.append(f"{here.elements or 'no known number of'} elements, there {there.elements or 'no known number'}")
    if here.structure != there.structure:
        words.append(f"elements {here.structure[:200]}, there {there.structure[:200]}")
    if here.sources != there.sources and not words:
        words.append("made from other files or numbers")
    return words


class _Body:
    """The nodes of a graph or of a function, read."""

    def __init__(self, nodes: Sequence[Any], base: str) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._base = base.rstrip("/").encode()
        self.shards: list[str] = []
        self.counts: list[str] = []
        self.seeds: list[bytes] = []
        self.sources: list[bytes] = []
        self.rest: list[bytes] = []
        apart: set[str] = set()  # constants that are not among the rest
        self._unordered: set[str] = set()
        for node in nodes:
            inputs = [name for name in map(_producer, node.input) if name]
            if _STATE.fullmatch(node.op):
                apart.update(inputs[1:])
            elif node.op == _SHARD:
                apart.update(inputs[1:])
                self.shards.append(f"{self._number(inputs[2])} of {self._number(inputs[1])}")
            elif node.op in _COUNTS:
                apart.update(inputs[1:])
                self.counts.append(f"{_COUNTS[node.op]}({self._number(inputs[1])})")
            elif node.op in _SEEDS:
                places = [inputs[place] for place in _SEEDS[node.op]]
                apart.update(places)
                self.seeds.append(f"{node.op} {[self._number(place) for place in places]}".encode())
            if node.op in _TUNING:
                apart.update(inputs[place] for place in _TUNING[node.op] if abs(place) < len(inputs))
            elif _DATASET.fullmatch(node.op) and not any(map(self._is_dataset, inputs)):
                self._read_source(node.op, inputs)
        for node in nodes:
            if node.name not in apart:
                self._read(node)

    def _is_dataset(self, name: str) -> bool:
        return name in self._nodes and bool(_DATASET.fullmatch(self._nodes[name].op))

    def _number(self, name: str) -> str:
        value = self._constant(name)
        return "?" if value is None or value.size != 1 else str(value.reshape(-1)[0])

    def _constant(self, name: str) -> Any:
        """Returns the value of a constant as an array; None if the node is not a constant, or holds a handle."""
        import tensorflow as tf

        node = self._nodes.get(name)
        if node is None or node.op != "Const" or node.attr["dtype"].type in (tf.resource, tf.variant):
            return None
        tensor = node.attr["value"].tensor
        if tensor.dtype == tf.string:  # make_ndarray does not read all of their forms
            return np.asarray(tf.io.parse_tensor(tensor.SerializeToString(), tf.string).numpy(), object)
        try:
            return tf.make_ndarray(tensor)
        except TypeError:  # of a type that NumPy has not
            return None

    def _read_source(self, op: str, inputs: Iterable[str]) -> None:
        for place, name in enumerate(inputs):
            value = self._constant(name)
            if value is None:
                continue
            self._unordered.add(name)
            content = _content(value, ordered=False, text=lambda name: name.rpartition(b"/")[2])
            self.sources.append(repr((op, place, value.shape)).encode() + content)

    def _read(self, node: Any) -> None:
        """Describes a node without its name."""
        words = [node.op.encode()]
        for name in node.input:
            producer = self._nodes.get(_producer(name))
            words.append(producer.op.encode() if producer is not None else b"argument")
        for name in sorted(node.attr):
            if name in _SEED_ATTRIBUTES and node.op != "Const":
                self.seeds.append(f"{node.op} {name} {node.attr[name].i}".encode())
            elif name == "value" and node.op == "Const":
                words.append(self._value(node))
            elif name not in _LEFT_OUT and not name.startswith("_"):
                words.append(name.encode() + _attribute(node.attr[name]))
        self.rest.append(b"\0".join(words))

    def _value(self, node: Any) -> bytes:
        value = self._constant(node.name)
        if value is None:
            return b"handle"
        content = _content(
            value, ordered=node.name not in self._unordered, text=lambda text: text.replace(self._base, b"")
        )
        return repr((str(value.dtype), value.shape)).encode() + content


def _producer(name: str) -> str:
    """Returns the node of an input: ``add:z:0`` and ``add:1`` are of ``add``; a control input has none."""
    return "" if name.startswith("^") else name.partition(":")[0]


def _content(value: Any, *, ordered: bool, text: Callable[[bytes], bytes]) -> bytes:
    """Returns the digest of an array: of its rows in any order, or as it is; texts are changed first."""
    rows = value.reshape(len(value) if value.ndim and value.size else 1, -1)
    if value.dtype.kind == "O":
        items = [[text(item) for item in row] for row in rows.tolist()]
        return hashlib.sha256(repr(items if ordered else sorted(items)).encode()).digest()
    if not ordered and rows.size:
        packed = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))
        rows = (
            np.sort(packed, axis=None) if rows.shape[1] > 1 or rows.dtype.kind not in "iuf" else np.sort(rows, axis=0)
        )
    return hashlib.sha256(rows.tobytes()).digest()


def _attribute(value: Any) -> bytes:
    """Describes an attribute; the functions that it names are read by themselves."""
    if value.WhichOneof("value") == "func":
        return b"function"
    functions = len(value.list.func)
    return f"{functions} functions".encode() if functions else bytes(value.SerializeToString(deterministic=True))


def _digest(parts: Iterable[bytes]) -> str:
    """Returns the digest of descriptions in any order: functions have none."""
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(part).digest() for part in parts))).hexdigest()[:32]


_RANKS = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE"))
_START = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")  # the same on all ranks of a start
_PLACE = (*(rank for rank, _ in _RANKS), "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "TF_CONFIG", "SM_CURRENT_HOST")
_PROCESS = uuid.uuid4().hex
_GROUP, _HOST, _HOSTS = "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_GROUP_HOSTS"


def note_of(text: str) -> Any:
    """Returns a dataset that says something by the structure of its elements; it is never read."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensors({text: 0})


def dispatcher_id(text: str) -> str:
    """Returns 32 digits: the dispatcher makes an id a file's name."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def ranks_of(environment: Mapping[str, str]) -> int:
    """Returns how many training processes there are.

    As torchrun, MPI, Horovod or TF_CONFIG say. In a job without a distribution the script runs once on each host, so
    it is the number of this group's hosts; elsewhere 1.
    """
    for _, size in _RANKS:
        if environment.get(size, "").isdecimal():
            return int(environment[size])
    try:
        cluster = json.loads(environment.get("TF_CONFIG") or "{}")["cluster"]
        found = sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (ValueError, KeyError, TypeError, AttributeError):  # none, or TensorFlow's own business
        found = 0
    if found:
        return found
    try:
        hosts = json.loads(environment.get(_HOSTS) or "[]")
    except ValueError:  # not ours
        return 1
    return max(1, len(hosts)) if isinstance(hosts, list) else 1


def rank_name(environment: Mapping[str, str]) -> str:
    """Returns what to call this process in a message, e.g. ``rank 1 (dnn_group/algo-2)``."""
    number = next((environment[rank] for rank, _ in _RANKS if environment.get(rank, "").isdecimal()), "")
    if _HOST in environment:
        place = "/".join(filter(None, (environment.get(_GROUP), environment[_HOST])))
    else:
        place = f"process {os.getpid()} on {socket.gethostname()}"
    return f"rank {number} ({place})" if number else place


def _place(environment: Mapping[str, str]) -> str:
    """Returns what stays the same of a rank that is started again; of a process that is no rank, that there is one."""
    return json.dumps([environment.get(variable, "") for variable in _PLACE])


def job_name(name: str, environment: Mapping[str, str]) -> str:
    """Returns the name that a dataset has at the dispatcher.

    torchrun can start all ranks again; each of its starts has passes of its own.
    """
    start = [environment.get(variable, "") for variable in _START]
    return f"{name}-{dispatcher_id(json.dumps(start))[:16]}" if start[0] else name


def check_started_once(address: str, job: str, name: str, environment: Mapping[str, str]) -> None:
    """Checks that no other process had the place of this one among those that read a dataset.

    Args:
        address: of the dispatcher.
        job: name of the dataset at the dispatcher.
        name: of the dataset, for messages.
        environment: of this process.

    Raises:
        UsageError: there was one.
        tensorflow.errors.OpError: the dispatcher cannot be asked.
    """
    who = rank_name(environment)
    here = {"who": who, "process": f"{_PROCESS}-{os.getpid()}"}
    first = _first_note(address, f"headrace-process-{dispatcher_id(job + _place(environment))}", here)
    if first != here:
        raise UsageError(
            f"{who} distributes the dataset {name!r} of which {first['who']} has read before it: the dispatcher at "
            f"{address} knows those passes, and would hand out what is left of them, or nothing",
            hint="when a training is started again, start its dispatcher again too, or give the dataset a name of this "
            f"start: distribute(dataset, {name + '-2'!r}). Processes that share a dataset need RANK and WORLD_SIZE, as "
            "launchers set them, or TF_CONFIG",
        )


def check_likeness(address: str, job: str, name: str, here: Likeness, who: str, *, same_data: bool) -> None:
    """Checks that this rank brings the pipeline which others bring under the name, or is the first to bring one.

    Other seeds, which are another order, are warned of.

    Args:
        address: of the dispatcher.
        job: name of the dataset at the dispatcher.
        name: of the dataset, for messages.
        here: facts of this rank's pipeline.
        who: this rank, for messages.
        same_data: the user says that other operations and constants make the same data.

    Raises:
        UsageError: the data is another, or may be.
        tensorflow.errors.OpError: the dispatcher cannot be asked.
    """
    first = _first_note(address, f"headrace-{dispatcher_id(job)}", {"who": who, **asdict(here)})
    other = str(first.pop("who"))
    there = Likeness(**first)
    differences = certain_differences(here, there)
    if differences:
        raise UsageError(
            f"{who} distributes another dataset under the name {name!r} than {other}: {'; '.join(differences)}. "
            "tf.data.service makes the elements of one of them only, and what the other has beside them is never read",
            hint="do not shard by rank, with shard() or with files or numbers of a rank's own: let all ranks "
            "distribute the same pipeline, and the service hands every element to one rank; other "
            f"datasets need names of their own: distribute(dataset, {name + '-2'!r})",
        )
    if here.rest != there.rest and not same_data:
        raise UsageError(
            f"{who} and {other} distribute pipelines under the name {name!r} that differ in operations or constants, "
            "as in a filter that keeps another half on each rank. tf.data.service runs one of them only, for all "
            "ranks, and what the other has beside it is never read",
            hint="let all ranks distribute the same pipeline; other datasets need names of their own: "
            f"distribute(dataset, {name + '-2'!r}). Where the data is the same, as with other directories or a number "
            "that each process measures: distribute(..., same_data=True)",
        )
    if here.seeds != there.seeds:
        warnings.warn(
            f"{who} and {other} distribute pipelines under the name {name!r} that differ in random seeds; the order is "
            "that of one of them, for all ranks",
            stacklevel=3,
        )


def _first_note(address: str, key: str, here: dict[str, Any]) -> dict[str, Any]:
    """Returns what the first process left at the dispatcher under a key; it may be this one."""
    import tensorflow as tf

    service = tf.data.experimental.service
    note = note_of(json.dumps(here, sort_keys=True))
    try:
        service.register_dataset(address, note, compression=None, dataset_id=key)
    except tf.errors.InvalidArgumentError:  # another structure is there: another process's note
        pass
    (first,) = service.from_dataset_id("parallel_epochs", address, key).element_spec
    return dict(json.loads(first))

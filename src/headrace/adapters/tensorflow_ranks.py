"""The ranks that share a dataset: which one this is, how many there are, and whether all have the same pipeline.

They compare their pipelines at the dispatcher, which all of them can reach. The dispatcher keeps a dataset that is
registered under a given id, in its journal too, and refuses another one under that id unless the structure of its
elements is the same. So the first rank registers a dataset of one element that is never read, whose structure is a
dict with one key: the facts of its pipeline, as JSON. The later ranks find them there.

In the same way each rank says which process it is. A dispatcher that outlives a training knows its passes, as far as
they were read, and would hand out the rest of them, or nothing, to the process that is started in its place.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
import warnings
from collections.abc import Mapping
from typing import Any

from headrace.adapters.tensorflow_likeness import Likeness, certain_differences
from headrace.adapters.tensorflow_passes import digest, note_of
from headrace.errors import UsageError

_RANKS = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE"))
_START = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")  # the same on all ranks of a start
_PLACE = (*(rank for rank, _ in _RANKS), "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "TF_CONFIG", "SM_CURRENT_HOST")
_PROCESS = uuid.uuid4().hex
_GROUP, _HOST, _HOSTS = "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_GROUP_HOSTS"


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
    return f"{name}-{digest(json.dumps(start))[:16]}" if start[0] else name


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
    first = _first_note(address, f"headrace-process-{digest(job + _place(environment))}", here)
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
    first = _first_note(address, f"headrace-{digest(job)}", {"who": who, **here.as_dict()})
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

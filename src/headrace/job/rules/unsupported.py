"""Values of a job that have no effect in an engine. `headrace plan` lists them; none is dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.errors import EngineRefused
from headrace.job.problems.finding import Path, field_text
from headrace.job.rules.raw_access import Data, mapping

_HERE = "all hosts are on this machine"
_NO_IMAGE = "programs run in the Python that runs headrace, not in an image"
_NO_WAIT = "this machine is there at once"
_DISK = "the run's folder is on this machine's disk"
_SERVICE = "only SageMaker has it"

_LOCAL: dict[str, str] = {
    "image_uri": _NO_IMAGE,
    "role": "no AWS role is taken; s3:// uses the credentials of the environment",
    "framework_version": _NO_IMAGE,
    "py_version": _NO_IMAGE,
    "volume_size": _DISK,
    "volume_kms_key": _DISK,
    "output_kms_key": "what is written is not encrypted with it",
    "code_location": "the code is copied into the run's folder",
    "subnets": _HERE,
    "security_group_ids": _HERE,
    "enable_network_isolation": "programs reach what this machine reaches",
    "use_spot_instances": _NO_WAIT,
    "keep_alive_period_in_seconds": _NO_WAIT,
    "training_plan": _NO_WAIT,
    "stopping_condition.max_wait": _NO_WAIT,
    "stopping_condition.max_pending_time": _NO_WAIT,
    "tags": "labels stay in the run's job file",
}

_ALL_SERVE = "all instances of the groups of data_service serve, from beginning to end"

_SLURM: dict[str, str] = {
    **_LOCAL,
    "data_service.feed.workers": _ALL_SERVE,
    "image_uri": "programs run in the Python that runs headrace; a container is named in engines.slurm.launcher",
    "volume_size": "the run's folder is on the file system that the nodes share",
    "volume_kms_key": "the run's folder is on the file system that the nodes share",
    "subnets": "the network is the cluster's",
    "security_group_ids": "the network is the cluster's",
    "enable_network_isolation": "programs reach what their nodes reach",
    "use_spot_instances": "a partition or a qos says what may be taken away",
    "keep_alive_period_in_seconds": "the nodes go back to the cluster",
    "training_plan": "a reservation is one of engines.slurm.options",
    "stopping_condition.max_wait": "Slurm decides how long a job waits",
    "stopping_condition.max_pending_time": "Slurm decides how long a job waits",
}

_KUBERNETES: dict[str, str] = {
    **{name: why for name, why in _LOCAL.items() if name != "image_uri"},
    "data_service.feed.workers": _ALL_SERVE,
    "framework_version": "the image is what it is",
    "py_version": "the image is what it is",
    "role": "pods have the rights of engines.kubernetes.service_account",
    "volume_size": "a pod's folders are on its node's disk; engines.kubernetes.resources may limit ephemeral-storage",
    "volume_kms_key": "a pod's folders are on its node's disk",
    "code_location": "the code travels in a Secret of the run",
    "subnets": "the network is the cluster's",
    "security_group_ids": "the network is the cluster's",
    "enable_network_isolation": "a NetworkPolicy of the namespace says what pods reach",
    "use_spot_instances": "node_selector and tolerations say which nodes may be taken away",
    "keep_alive_period_in_seconds": "the nodes are the cluster's",
    "training_plan": "engines.kubernetes.queue names a queue with its quota",
    "stopping_condition.max_wait": "engines.kubernetes.max_pending says how long a job waits",
    "stopping_condition.max_pending_time": "engines.kubernetes.max_pending says how long a job waits",
    "tags": "engines.kubernetes.labels are on the cluster's objects",
}

_IDLE = {"local": _LOCAL, "slurm": _SLURM, "kubernetes": _KUBERNETES}

_MEMBERS: dict[str, str] = {
    "DebugHookConfig": "the service's debugger does not run here",
    "DebugRuleConfigurations": "the service's debugger does not run here",
    "ProfilerConfig": "the service's profiler does not run here",
    "ProfilerRuleConfigurations": "the service's profiler does not run here",
    "TensorBoardOutputConfig": "TensorBoard files stay where the program writes them",
    "ExperimentConfig": "no experiment is kept by the service",
    "MlflowConfig": "nothing is told to MLflow",
}


@dataclass(frozen=True)
class Unused:
    """A value without effect.

    Attributes:
        field: its place in the job, e.g. ``stopping_condition.max_wait``.
        why: the reason, in a few words.
    """

    field: str
    why: str


def without_effect(engine: str, data: Data) -> tuple[Unused, ...]:
    """Returns what of a job has no effect in an engine, in the order of the job file's keys.

    Args:
        engine: ``local``, ``slurm``, ``kubernetes`` or ``sagemaker``.
        data: the job as plain data.

    Raises:
        EngineRefused: no engine of that name.
    """
    if engine in _IDLE:
        return tuple(_idle(data, _IDLE[engine]))
    if engine == "sagemaker":
        local = mapping(data, "engines", "local")
        fixed = tuple(_idle({"data_service": mapping(data, "data_service")}, {"data_service.feed.workers": _ALL_SERVE}))
        return (*fixed, *(Unused(f"engines.local.{key}", "it is for the local engine") for key in local))
    raise EngineRefused(f"no engine is called {engine!r}", hint="there is: local, slurm, kubernetes, sagemaker")


def _idle(data: Data, reasons: Mapping[str, str]) -> Iterator[Unused]:
    for name, why in reasons.items():
        section, _, key = name.rpartition(".")
        value = mapping(data, *section.split(".")).get(key) if section else data.get(key)
        if value not in (None, (), [], {}, "", False):
            yield Unused(name, why)
    for path in _members(data, mapping(data, "request_extras")):
        yield Unused(field_text(("request_extras", *path)), _MEMBERS.get(str(path[0]), _SERVICE))


def _members(data: Data, extras: Mapping[str, object]) -> Iterator[Path]:
    """Yields the members of a request that the job keeps and that have no effect here; of some, each value inside.

    The texts of hyperparameters, the arguments of a command and the order of channels are not among them: they only
    keep how the request wrote what the job has.
    """
    for name, member in extras.items():
        if name == "InputDataConfig" and isinstance(member, list):
            for index, channel in enumerate(member):
                if isinstance(channel, Mapping) and channel.keys() - {"ChannelName"}:
                    label = channel.get("ChannelName")
                    yield (name, label if isinstance(label, str) else index)
        elif name == "HyperParameters":
            continue
        elif name in ("AlgorithmSpecification", "ResourceConfig", "OutputDataConfig") and isinstance(member, Mapping):
            yield from ((name, key) for key in member if key != "ContainerArguments" or not data.get("command"))
        else:
            yield (name,)

"""Values of a job that have no effect in an engine. `headrace plan` lists them; none is dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.job.problems.finding import Path, field_text
from headrace.job.rules.raw_access import Data, mapping

_HERE = "all hosts are on this machine"
_NO_IMAGE = "programs run in the Python that runs headrace, not in an image"
_NO_WAIT = "this machine is there at once"
_DISK = "the run's folder is on this machine's disk"
_SERVICE = "only SageMaker has it"

IDLE_ON_OWN_HOSTS: dict[str, str] = {
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

NO_RANGE = {"data_service.feed.workers": "all instances of the groups of data_service serve, from beginning to end"}

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


def idle(data: Data, reasons: Mapping[str, str]) -> tuple[Unused, ...]:
    """Returns what of a job has no effect, in the order of the job file's keys.

    Args:
        data: the job as plain data.
        reasons: keys that have none in an engine, in sections by dots, with the reason.
    """
    return tuple(_idle(data, reasons))


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

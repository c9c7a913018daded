"""Estimators in the shape of the SageMaker Python SDK: the same classes, arguments and habits; the job runs here.

    from headrace.estimator import PyTorch, InstanceGroup, TrainingInput

Both generations of argument names work, those of SDK version 1 (`train_instance_type`, `distributions`) and those of
version 2 (`instance_type`, `distribution`). Objects of the SDK itself (`sagemaker.instance_group.InstanceGroup`,
`sagemaker.inputs.TrainingInput`) are understood too.

An estimator checks everything that can be checked when it is made or, for what needs the inputs, when `job` or `fit`
is called; all mistakes of a job come out at once, as `headrace.Job` reports them. It makes a CreateTrainingJob request,
which the job room reads as it reads one of `headrace serve`. One table says what an argument is:

* a member of the request, under any name that some version of the SDK gave it;
* a key of the job file, which stands beside the request: what a request cannot hold (a data service, options of
  engines), or not as a user here writes it (code on this machine, a distribution);
* refused, with what to write instead;
* read by the estimators themselves, or one of the SDK's own settings, which have no effect here.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn

from headrace.adapters.sdk_session import Session, TrainingJob, get_execution_role, not_available, with_local_places
from headrace.child_python import runs_in
from headrace.errors import JobInvalid, Problem, RunFailed, UsageError
from headrace.job import InstanceGroup, Job, TrainingInput
from headrace.job.model.fields import JobFields
from headrace.job.problems.finding import Path, value_at
from headrace.job.run_handle import CtrlC
from headrace.job.sagemaker.translation import (
    ARGUMENTS,
    CHANNELS,
    ENTRYPOINT,
    HYPERPARAMETERS,
    VALUES,
    channel_member,
    put,
    read_request,
)
from headrace.sagemaker_parameters import LOG_LEVEL, REGION

__all__ = [
    "Estimator",
    "InstanceGroup",
    "PyTorch",
    "Session",
    "TensorFlow",
    "TrainingInput",
    "TrainingJob",
    "get_execution_role",
]

SERVICE = "sagemaker"
"""The engine that sends a request to SageMaker."""

VERSION_1 = {
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_volume_size": "volume_size",
    "train_volume_kms_key": "volume_kms_key",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
    "distributions": "distribution",
    "image_name": "image_uri",
}
"""Name in SDK version 1 to name in version 2."""


@dataclass(frozen=True)
class Argument:
    """An argument that says something of the job.

    Attributes:
        place: where in the request. None: a key of the job file, beside the request, which cannot hold it, or not as a
            user writes it.
        of_service: of a request that is sent to SageMaker only; elsewhere the argument has no effect.
        write: makes its value there of name and value; None leaves a member out.
    """

    place: Path | None = None
    of_service: bool = False
    write: Callable[[str, object], object] = lambda _, value: value


@dataclass(frozen=True)
class Refused:
    """An argument that must not be ignored.

    Attributes:
        instead: what to write.
        by_service: only where the job is sent to SageMaker; elsewhere the argument has no effect.
    """

    instead: str
    by_service: bool = False


def _configuration(name: str, value: object) -> object:
    """A configuration as the request has it: a mapping, or an object of the SDK that can make one."""
    if isinstance(value, Mapping) or not value:
        return dict(value) if isinstance(value, Mapping) and value else None
    to_request = getattr(value, "_to_request_dict", None)
    if not callable(to_request):
        raise UsageError(f"{name} must be a mapping or False, not {type(value).__name__}")
    return to_request()


def _strings(name: str, value: object) -> object:
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{name} must be a list of strings, not {type(value).__name__}")
    return list(value)


def _groups(_: str, groups: object) -> object:
    """Converts each group with `_group`; a value that is not a list is left to the job's own check."""
    return [_group(group) for group in groups] if isinstance(groups, (list, tuple)) else groups


def _group(group: object) -> object:
    """A group of the SDK becomes a mapping; ours and mappings stay."""
    names = ("instance_group_name", "instance_type", "instance_count")
    if isinstance(group, Mapping) or not all(hasattr(group, name) for name in names):
        return group
    if type(group).__module__.startswith("headrace."):
        return group
    return {name: getattr(group, name) for name in names}


def _with_names(_: str, distribution: object) -> object:
    """A distribution whose groups are names: of SDK objects, only the name counts."""
    if not isinstance(distribution, Mapping):
        return distribution
    groups = distribution.get("instance_groups")
    if not isinstance(groups, (list, tuple)):
        return distribution
    return {**distribution, "instance_groups": [getattr(group, "instance_group_name", group) for group in groups]}


def region_of(session: object) -> str:
    """Returns the region of an estimator's session; empty for one that has none."""
    region = getattr(session, "boto_region_name", None)
    return region if isinstance(region, str) else ""


_IMAGE_CONFIG = ("AlgorithmSpecification", "TrainingImageConfig")
_ARGUMENTS: dict[str, Argument | Refused | None] = {
    **dict.fromkeys(JobFields.model_fields, Argument()),
    "code_location": Argument(of_service=True),  # elsewhere no code is uploaded
    "distribution": Argument(write=_with_names),
    "instance_groups": Argument(write=_groups),
    **{str(key[-1]): Argument(place) for place, key in VALUES if key != ("job_name",)},
    "max_retry_attempts": Argument(("RetryStrategy", "MaximumRetryAttempts")),
    "container_entry_point": Argument(ENTRYPOINT, write=_strings),
    "container_arguments": Argument(ARGUMENTS, write=_strings),
    "container_log_level": Argument((HYPERPARAMETERS, LOG_LEVEL), write=lambda _, level: json.dumps(level)),
    "debugger_hook_config": Argument(("DebugHookConfig",), write=_configuration),
    "disable_output_compression": Argument(
        ("OutputDataConfig", "CompressionType"), write=lambda _, value: "NONE" if value else None
    ),
    "profiler_config": Argument(("ProfilerConfig",), write=_configuration),
    "sagemaker_session": Argument(
        (HYPERPARAMETERS, REGION),
        write=lambda _, session: json.dumps(region_of(session)) if region_of(session) else None,
    ),
    "tensorboard_output_config": Argument(("TensorBoardOutputConfig",), write=_configuration),
    "disable_profiler": Argument(("ProfilerConfig", "DisableProfiler"), of_service=True),
    "enable_infra_check": Argument(("InfraCheckConfig", "EnableInfraCheck"), of_service=True),
    "enable_remote_debug": Argument(("RemoteDebugConfig", "EnableRemoteDebug"), of_service=True),
    "enable_sagemaker_metrics": Argument(
        ("AlgorithmSpecification", "EnableSageMakerMetricsTimeSeries"), of_service=True
    ),
    "enable_session_tag_chaining": Argument(("SessionChainingConfig", "EnableSessionTagChaining"), of_service=True),
    "training_image_config": Argument(_IMAGE_CONFIG, of_service=True),
    "training_repository_access_mode": Argument((*_IMAGE_CONFIG, "TrainingRepositoryAccessMode"), of_service=True),
    "git_config": Refused("clone the repository and give source_dir"),
    "model_uri": Refused("give the model as a channel in fit(inputs=...)"),
    "training_recipe": Refused("give entry_point and hyperparameters"),
    "instance_preferences": Refused("give instance_type, or instance_groups"),
    "compiler_config": Refused("choose an image with the compiler by image_uri", by_service=True),
    "model_channel_name": Refused("name the channel in fit(inputs={...})", by_service=True),
    "rules": Refused("give them as request_extras of a headrace.Job", by_service=True),
    "training_repository_credentials_provider_arn": Refused(
        "give training_image_config with TrainingRepositoryAuthConfig", by_service=True
    ),
    **dict.fromkeys(("base_job_name", "engine", "job_name", "model_dir", "script_mode")),
}
for _name in ("attempts", "command", "inputs", "max_pending_time", "request_extras", "stopping_condition"):
    _ARGUMENTS.pop(_name, None)


def checked(given: Mapping[str, object]) -> dict[str, object]:
    """Returns an estimator's arguments under their names of version 2, without those that are None.

    Raises:
        UsageError: an argument that is not known, that comes in both spellings, or that cannot be honoured.
    """
    arguments = {name: value for name, value in given.items() if value is not None and name not in VERSION_1}
    for old, new in VERSION_1.items():
        if given.get(old) is None:
            continue
        if new in arguments:
            raise UsageError(f"{old} and {new} are the same argument", f"keep {new}")
        arguments[new] = given[old]
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            near = difflib.get_close_matches(name, sorted({*_ARGUMENTS, *VERSION_1}), n=1)
            raise UsageError(f"an estimator has no argument {name!r}", f"did you mean {near[0]!r}?" if near else "")
        entry = _ARGUMENTS[name]
        if isinstance(entry, Refused) and not entry.by_service:
            raise UsageError(f"{name} works only on SageMaker's own service", entry.instead)
        if isinstance(entry, Argument):
            entry.write(name, value)
        if name == "script_mode" and value is False:
            raise UsageError("script_mode=False is not possible: an entry point is always a script", "leave it out")
    if arguments.get("container_arguments") and not arguments.get("container_entry_point"):
        raise UsageError("container_arguments need a program", "give container_entry_point too, or hyperparameters")
    return arguments


def request_of(arguments: Mapping[str, object], engine: str) -> tuple[dict[str, object], dict[str, object]]:
    """Returns the request that arguments make, without name and channels, and the keys of the job beside it.

    Args:
        arguments: as `checked` returns them.
        engine: that runs the job.

    Raises:
        UsageError: an argument that cannot be honoured on SageMaker.
    """
    request: dict[str, object] = {}
    keys: dict[str, object] = {}
    to_service = engine == SERVICE
    for name, value in arguments.items():
        entry, empty = _ARGUMENTS[name], value in ("", [], {})
        if isinstance(entry, Refused):
            if to_service and value:
                raise UsageError(f"{name} is not possible with engine={SERVICE!r}", entry.instead)
        elif entry is None or (entry.of_service and not to_service):
            continue  # it has no effect
        elif entry.place is None or (empty and name in JobFields.model_fields):  # what is empty is the job's to refuse
            keys[name] = entry.write(name, value)
        elif not empty and (member := entry.write(name, value)) is not None:
            put(request, entry.place, member)
    return request, keys


DEFAULT_CHANNEL = "training"
"""Name of the channel when `inputs` is one location and not a mapping; the SDK's own."""


def channels(inputs: object) -> list[dict[str, object]]:
    """Returns the channels of a request.

    Args:
        inputs: None; a path or URI; a `TrainingInput`, ours or the SDK's; or a mapping of names to these.

    Raises:
        UsageError: something else.
    """
    named = inputs if isinstance(inputs, Mapping) else {} if inputs is None else {DEFAULT_CHANNEL: inputs}
    return [_channel(str(name), value) for name, value in named.items()]


def _channel(name: str, value: object) -> dict[str, object]:
    if isinstance(value, TrainingInput):
        return channel_member(name, value)
    if isinstance(value, (str, os.PathLike)):
        source = {"S3Uri": os.fspath(value), "S3DataType": "S3Prefix"}
        return {"ChannelName": name, "DataSource": {"S3DataSource": source}}
    config = getattr(value, "config", None)  # of the SDK's `TrainingInput`: a channel without its name
    if not isinstance(config, Mapping):
        raise UsageError(
            f"inputs[{name!r}] is of type {type(value).__name__}",
            "give a path, an s3:// or file:// URI, or a TrainingInput",
        )
    channel: dict[str, object] = {"ChannelName": name, **config}
    if "inputs" not in read_request({CHANNELS: [channel]}).data:
        raise UsageError(f"inputs[{name!r}] has no S3DataSource", "give a path, or an s3:// or file:// URI")
    return channel


_NAME_LENGTH = 63
_STAMP = "%Y-%m-%d-%H-%M-%S"
MODEL_DIR = "/opt/ml/model"
_ON_PYTHON = ("local", "slurm")
"""Engines whose hosts run programs in a Python that is installed there."""
_SERVE_IT = "estimator.model_data is the path or URI of model.tar.gz: give it to what serves models"
_REPORT = "headrace measures every run: headrace report NAME"
_INSTEAD = {
    "attach": "name the job to a command, e.g. headrace logs NAME -f, or use headrace.runs.Run.open(NAME)",
    **dict.fromkeys(("deploy", "create_model", "register", "transformer", "compile_model"), _SERVE_IT),
    **dict.fromkeys(("enable_default_profiling", "update_profiler", "training_job_analytics"), _REPORT),
}
"""What to do in place of what only the SDK's estimators have."""
_pythons_shown: set[tuple[str, str]] = set()  # with their images


class Estimator:
    """One training job that can be fitted again and again, as `sagemaker.estimator.Estimator`.

    Args:
        image_uri: accepted, of no effect where programs run in the Python that runs headrace.
        role: accepted, of no effect.
        instance_count, instance_type: machines of one type; or else
        instance_groups: up to five groups of machines.
        entry_point: the program, inside `source_dir`; without one, the path of a script, which alone is copied.
        source_dir: folder with the code.
        hyperparameters: become the program's arguments.
        environment: variables of every program.
        distribution: how ranks are started and in which groups.
        base_job_name: beginning of the job's name; a time follows.
        job_name: the whole name, as the guide to heterogeneous clusters writes it.
        engine: where instances come from, e.g. ``local`` or ``sagemaker``.
        data_service, completion, engines: headrace's own keys of the job file.
        **others: every other argument of the SDK's estimators, of version 1 or 2. See `_ARGUMENTS`.

    Raises:
        UsageError: an argument that is not known or cannot be honoured, or hyperparameters that are no mapping.
    """

    _FAMILY: ClassVar[str] = "training"
    _FRAMEWORK: ClassVar[str] = ""

    def __init__(
        self,
        image_uri: str | None = None,
        role: str | None = None,
        instance_count: int | None = None,
        instance_type: str | None = None,
        *,
        entry_point: str | None = None,
        source_dir: str | None = None,
        hyperparameters: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        instance_groups: Sequence[object] | None = None,
        distribution: Mapping[str, object] | None = None,
        base_job_name: str | None = None,
        job_name: str | None = None,
        engine: str = "local",
        data_service: Mapping[str, object] | None = None,
        completion: Mapping[str, object] | None = None,
        engines: Mapping[str, object] | None = None,
        **others: object,
    ) -> None:
        given: dict[str, object] = {
            "image_uri": image_uri,
            "role": role,
            "instance_count": instance_count,
            "instance_type": instance_type,
            "entry_point": entry_point,
            "source_dir": source_dir,
            "environment": environment,
            "instance_groups": instance_groups,
            "distribution": distribution,
            "data_service": data_service,
            "completion": completion,
            "engines": engines,
            **others,
        }
        self._arguments = checked(given)
        if hyperparameters is not None and not isinstance(hyperparameters, Mapping):
            problem = Problem("hyperparameters", "must be a mapping of names to values", repr(hyperparameters))
            raise JobInvalid((problem,))
        self._hyperparameters = dict(hyperparameters or {}) | self._own_hyperparameters(others)
        self._base_job_name = base_job_name
        self._job_name = job_name
        self._engine = engine
        session = others.get("sagemaker_session")
        self.sagemaker_session = session if isinstance(session, Session) else Session()
        self.latest_training_job: TrainingJob | None = None

    def set_hyperparameters(self, **kwargs: object) -> None:
        """Adds hyperparameters, or changes them."""
        self._hyperparameters |= kwargs

    def hyperparameters(self) -> dict[str, object]:
        """Returns the hyperparameters."""
        return dict(self._hyperparameters)

    def job(self, inputs_: object = None, job_name: str | None = None, engine: str | None = None) -> Job:
        """Returns the job that `fit` would run. Starts nothing.

        Args:
            inputs_: as `fit`'s `inputs`.
            job_name: as `fit`'s.
            engine: as `fit`'s.

        Raises:
            JobInvalid: with every problem of the job.
        """
        engine = engine or self._engine
        request, keys = request_of(self._arguments, engine)
        if inputs := channels(inputs_):
            request[CHANNELS] = inputs
        if self._hyperparameters:
            keys["hyperparameters"] = dict(self._hyperparameters)
        if engine == SERVICE:
            self._choose(keys)
        data = with_local_places(read_request(request).data) | keys
        return Job(job_name=job_name or self._job_name or self._generated_name(), **data)  # type: ignore[arg-type]

    def fit(
        self,
        inputs: object = None,
        wait: bool = True,
        logs: bool | str | Sequence[str] = True,
        job_name: str | None = None,
        experiment_config: Mapping[str, object] | None = None,
        engine: str | None = None,
    ) -> None:
        """Runs the job.

        Args:
            inputs: channels: a mapping of names to paths, URIs or `TrainingInput`; or one of these, which is then
                the channel ``training``.
            wait: return when the run has ended. Else the run lives without this process, as on the service.
            logs: while waiting, print the output of all programs. ``"All"``, ``"Training"`` and other choices of
                the SDK print, ``"None"``, ``None`` and False do not.
            job_name: name of the job; by default made of `base_job_name` and the time.
            experiment_config: accepted, of no effect.
            engine: where instances come from, in place of the estimator's own.

        Raises:
            JobInvalid, EngineRefused: the job cannot start; nothing was started.
            RunFailed: the run that was waited for has failed. One that was stopped, or has used up its time, is no
                failure, as in the SDK: standard error says so.
            RunInterrupted: Ctrl-C; the run was stopped, and the program ends with exit code 130.
        """
        del experiment_config
        job = self.job(inputs, job_name, engine)
        with CtrlC() if wait else contextlib.nullcontext() as ctrl_c:
            self._say_python(job, engine or self._engine)
            handle = job.fit(engine=engine or self._engine, wait=False, detach=not wait)
            if ctrl_c:
                ctrl_c.stops(handle)
            self.latest_training_job = self.sagemaker_session.add(TrainingJob(handle, job))
            if wait:
                self.latest_training_job.wait(logs=_printed(logs))

    def logs(self) -> None:
        """Prints the output of the last job so far."""
        self._latest().logs()

    @property
    def model_data(self) -> str:
        """Where the last job's model lies: path or URI of model.tar.gz.

        Raises:
            UsageError: no job was started.
            RunFailed: the job has not left a model.
        """
        where = self._latest().model_data
        if where is None:
            raise RunFailed(f"{self._latest().name} has stored no model")
        return where

    @classmethod
    def attach(cls, *args: object, **options: object) -> NoReturn:
        """Is not available: an estimator knows the jobs that it has started. Raises NotAvailable."""
        raise not_available("an estimator", "attach", _INSTEAD)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Names what to do in place of what only the SDK's estimators have. Raises NotAvailable."""
            raise not_available("an estimator", name, _INSTEAD)

    def _say_python(self, job: Job, engine: str) -> None:
        """Tells once which Python runs the programs, where that is one of this machine."""
        if engine in _ON_PYTHON:
            python = str(getattr(getattr(job.engines, engine, None), "python", None) or "")
            if (once := (job.image_uri or "", python)) not in _pythons_shown:
                _pythons_shown.add(once)
                print(f"headrace: {runs_in(*once)}", file=sys.stderr, flush=True)

    def _choose(self, keys: dict[str, object]) -> None:
        """Adds the image's framework and the region of a job on SageMaker, unless its options name others."""
        framework = "" if self._arguments.get("image_uri") else self._FRAMEWORK
        keys["engines"] = copy.deepcopy(keys.get("engines", {}))
        for name, value in (("framework", framework), ("region", region_of(self._arguments.get("sagemaker_session")))):
            place = ("engines", SERVICE, name)
            if value and value_at(keys, place) is None:
                put(keys, place, value)

    def _own_hyperparameters(self, others: Mapping[str, object]) -> dict[str, object]:
        if others.get("model_dir") is not None:
            raise UsageError("model_dir is an argument of the TensorFlow estimator", "use hyperparameters")
        return {}

    def _generated_name(self) -> str:
        base = self._base_job_name or self._FAMILY
        if not isinstance(base, str) or not re.fullmatch(r"[a-zA-Z0-9-]+", base):
            raise UsageError(f"base_job_name {base!r} must be letters, digits and hyphens")
        now = time.time()
        stamp = f"{time.strftime(_STAMP, time.gmtime(now))}-{int(now * 1000) % 1000:03d}"
        return f"{base[: _NAME_LENGTH - len(stamp) - 1]}-{stamp}"

    def _latest(self) -> TrainingJob:
        if self.latest_training_job is None:
            raise UsageError("this estimator has started no job yet", "call fit first")
        return self.latest_training_job


class PyTorch(Estimator):
    """As `sagemaker.pytorch.PyTorch`: `entry_point` is the first argument. See `Estimator`."""

    _FAMILY = "pytorch-training"
    _FRAMEWORK = "pytorch"

    def __init__(
        self,
        entry_point: str | None = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: str | None = None,
        hyperparameters: Mapping[str, object] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, object] | None = None,
        **others: object,
    ) -> None:
        super().__init__(
            image_uri,
            entry_point=entry_point,
            source_dir=source_dir,
            hyperparameters=hyperparameters,
            distribution=distribution,
            framework_version=framework_version,
            py_version=py_version,
            **others,  # type: ignore[arg-type]
        )


class TensorFlow(Estimator):
    """As `sagemaker.tensorflow.TensorFlow`. See `Estimator`.

    As there, the program gets ``--model_dir``: the folder whose content becomes model.tar.gz. ``model_dir=False``
    leaves it out.
    """

    _FAMILY = "tensorflow-training"
    _FRAMEWORK = "tensorflow"

    def __init__(
        self,
        py_version: str | None = None,
        framework_version: str | None = None,
        model_dir: str | bool | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, object] | None = None,
        **others: object,
    ) -> None:
        super().__init__(
            image_uri,
            distribution=distribution,
            framework_version=framework_version,
            py_version=py_version,
            model_dir=model_dir,
            **others,  # type: ignore[arg-type]
        )

    def _own_hyperparameters(self, others: Mapping[str, object]) -> dict[str, object]:
        model_dir = others.get("model_dir")
        if model_dir is True:
            raise UsageError("model_dir must be a path, or False")
        return {} if model_dir is False else {"model_dir": model_dir or MODEL_DIR}


def _printed(logs: bool | str | Sequence[str] | None) -> bool:
    return bool(logs) and logs != "None"

"""The estimators: arguments of the SageMaker Python SDK in, a `headrace.Job` out, and `fit`.

An estimator checks everything that can be checked when it is made or, for what needs the inputs, when `job` or `fit`
is called; all mistakes of a job come out at once, as `headrace.Job` reports them.
"""

from __future__ import annotations

import contextlib
import copy
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

from headrace.adapters.estimator import arguments
from headrace.adapters.estimator.arguments import region_of
from headrace.adapters.estimator.local_bucket import with_local_places
from headrace.adapters.estimator.sdk_session import Session, TrainingJob, not_available
from headrace.child_python import runs_in
from headrace.errors import JobInvalid, Problem, RunFailed, UsageError
from headrace.job import Job
from headrace.job.run_handle import CtrlC
from headrace.job.sagemaker.translation import CHANNELS, get, put, read_request

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
        **others: every other argument of the SDK's estimators, of version 1 or 2. See `arguments`.

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
            "instance_groups": _groups(instance_groups),
            "distribution": _with_names(distribution),
            "data_service": data_service,
            "completion": completion,
            "engines": engines,
            **others,
        }
        if "distributions" in given:
            given["distributions"] = _with_names(given["distributions"])
        self._arguments = arguments.checked(given)
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
        request, keys = arguments.request_of(self._arguments, engine)
        if channels := arguments.channels(inputs_):
            request[CHANNELS] = channels
        if self._hyperparameters:
            keys["hyperparameters"] = dict(self._hyperparameters)
        if engine == arguments.SERVICE:
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
            place = ("engines", arguments.SERVICE, name)
            if value and get(keys, place) is None:
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


def _groups(groups: object) -> object:
    """Converts each group with `_group`; a value that is not a list is left to the job's own check."""
    return [_group(each) for each in groups] if isinstance(groups, (list, tuple)) else groups


def _group(group: object) -> object:
    """A group of the SDK becomes a mapping; ours and mappings stay."""
    names = ("instance_group_name", "instance_type", "instance_count")
    if isinstance(group, Mapping) or not all(hasattr(group, name) for name in names):
        return group
    if type(group).__module__.startswith("headrace."):
        return group
    return {name: getattr(group, name) for name in names}


def _with_names(distribution: object) -> object:
    """A distribution whose groups are names: of SDK objects, only the name counts."""
    if not isinstance(distribution, Mapping):
        return distribution
    groups = distribution.get("instance_groups")
    if not isinstance(groups, (list, tuple)):
        return distribution
    return {**distribution, "instance_groups": [getattr(group, "instance_group_name", group) for group in groups]}


def _printed(logs: bool | str | Sequence[str] | None) -> bool:
    return bool(logs) and logs != "None"

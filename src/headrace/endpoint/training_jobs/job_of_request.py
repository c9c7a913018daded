"""A CreateTrainingJob request becomes a job of headrace, or is refused in the words of the service.

What is in the endpoint's own buckets is linked by its path on this machine, and nothing is copied. A prefix of S3 is no
folder: ``s3://b/data`` means ``data/x`` and ``data2`` too. Where a path does not mean the same, the address stays, and
the data come through the endpoint's S3 like those of any other bucket.

An image stands for a Python, since this machine runs programs. A rule is a name and a Python. The name may be the
image's repository (``pytorch-training``), with a tag or its beginning (``pytorch-training:2.1``), or a pattern with
``*`` that the whole address must match. The first rule that fits counts; without one the Python of headrace does.

The options of the engine (`--set engines.slurm.partition=gpu`), for which a request has no member, hold for every job;
those of a group for the jobs that have a group of that name.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from headrace.child_python import runs_in
from headrace.endpoint.wire.models import ServiceError
from headrace.endpoint.wire.requests import refusal
from headrace.errors import EngineRefused, JobInvalid, UsageError
from headrace.job import Job
from headrace.job.job_document import apply, parse_path
from headrace.job.problems.finding import JobSource, value_at
from headrace.job.sagemaker.translation import CHANNELS, WORLD_GROUPS, read_request, with_places
from headrace.runs.event_text import worlds_text

GROUPS = "groups"
_SHARED_FILES = ("local", "slurm")
_WITH_GRACE = (*_SHARED_FILES, "kubernetes")


@dataclass(frozen=True)
class EngineSettings:
    """An engine and the options of its jobs.

    Args:
        engine: its name.
        texts: ``engines.ENGINE.OPTION=VALUE``, as `headrace run --set` takes them.
    """

    engine: str
    texts: tuple[str, ...] = ()

    @property
    def shares_files(self) -> bool:
        """Whether hosts see the files of this machine, so that a bucket's folder can be linked."""
        return self.engine in _SHARED_FILES

    def put_into(self, data: Mapping[str, object], stop_grace: float, python: str) -> dict[str, object]:
        """Returns a job's data with the options of its engine.

        Args:
            data: keys of a job file.
            stop_grace: seconds between SIGTERM and SIGKILL, unless an option says otherwise.
            python: of the programs; empty for what the options say, else the engine's default.

        Raises:
            UsageError: an option has no place there, or its value cannot be read.
        """
        groups = data.get("instance_groups")
        names = {str(each.get("instance_group_name")) for each in groups} if isinstance(groups, Sequence) else set()
        base: dict[str, object] = {"stop_grace": stop_grace} if self.engine in _WITH_GRACE else {}
        with_base = {**data, "engines": {self.engine: base}} if base else dict(data)
        found = apply(with_base, [text for text in self.texts if (group := _group_of(text)) is None or group in names])
        if found.findings:
            wrong = "; ".join(f"{found.texts[each.path]}: {each.message}" for each in found.findings)
            raise UsageError(f"--set {wrong}", f"e.g. engines.{self.engine}.OPTION=VALUE")
        engines = found.data.get("engines")
        options = engines.get(self.engine) if isinstance(engines, dict) else None
        if python and isinstance(options, dict):
            options["python"] = python
        return found.data

    def check(self) -> None:
        """Checks the options by the rules of jobs.

        Raises:
            UsageError: they are not of this engine, or a job could not have them.
        """
        for text in self.texts:
            try:
                path = parse_path(text)
            except ValueError as error:
                raise UsageError(f"--set {text}: {error}", f"e.g. engines.{self.engine}.OPTION=VALUE") from error
            if path[:2] != ("engines", self.engine) or len(path) < 3:
                hint = f"give options of the engine that runs the jobs: engines.{self.engine}.OPTION=VALUE"
                raise UsageError(f"--set {text}: a job's own values stand in its request", hint)
        groups = sorted({group for text in self.texts if (group := _group_of(text)) is not None}) or ["group"]
        data: dict[str, object] = {
            "job_name": "settings",
            "entry_point": "train.py",
            "source_dir": ".",
            "image_uri": "image",
            "instance_groups": [
                {"instance_group_name": name, "instance_type": "ml.m5.xlarge", "instance_count": 1} for name in groups
            ],
        }
        try:
            Job.from_source(self.put_into(data, 30.0, ""), JobSource(), Path(), look=False)
        except JobInvalid as error:
            wrong = "; ".join(f"{each.field}: {each.message}" for each in error.problems)
            raise UsageError(f"--set: {wrong}", "`headrace schema` lists the options of the engines") from error


def _group_of(text: str) -> str | None:
    """Returns the group that an option is for; None for one that is for all."""
    path = parse_path(text)
    return str(path[3]) if len(path) > 3 and path[2] == GROUPS else None


_SECONDS = 30.0


@dataclass(frozen=True)
class ImageRule:
    """One rule: the name that images are compared with, the interpreter, and its version."""

    name: str
    python: str
    version: str

    def fits(self, image: str) -> bool:
        """Tells whether an image is meant."""
        if "*" in self.name:
            return fnmatch.fnmatchcase(image, self.name)
        repository, _, tag = image.rpartition("/")[2].partition("@")[0].partition(":")
        name, colon, beginning = self.name.partition(":")
        return repository == name and (not colon or tag.startswith(beginning))


def read_rules(texts: Iterable[str]) -> tuple[ImageRule, ...]:
    """Reads rules ``NAME=PYTHON``; each Python is asked for its version.

    Raises:
        UsageError: one that is no rule, or whose Python does not run.
    """
    return tuple(_rule(text) for text in texts)


def _rule(text: str) -> ImageRule:
    name, equals, python = text.rpartition("=")
    if not (name and equals and python):
        raise UsageError(f"--image-map {text!r}: must be NAME=PYTHON", "e.g. pytorch-training=/opt/torch/bin/python")
    found = shutil.which(python)
    if found is None:
        raise UsageError(f"--image-map {text!r}: {python} is no program", "give the path of a Python")
    return ImageRule(name, os.path.abspath(found), version_of(found))  # noqa: PTH100  (a link stays: it is a venv's)


def version_of(python: str) -> str:
    """Returns the version of an interpreter. Raises UsageError when it does not run."""
    command = [python, "-c", "import platform; print(platform.python_version())"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{python} does not run as a Python: {error}", "give another one with --image-map") from error
    return done.stdout.strip()


def has_module(python: str, name: str) -> bool:
    """Tells whether an interpreter finds a module. One that does not run has none."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def python_for(image: str, rules: Iterable[ImageRule]) -> tuple[str, str]:
    """Returns the interpreter for an image (empty for headrace's own), and a sentence that says so."""
    rule = next((each for each in rules if each.fits(image)), None)
    if rule is None:
        return "", runs_in(image)
    return rule.python, f"{runs_in(image, rule.python, rule.version)}, by --image-map {rule.name}"


FindPath = Callable[[str, str], "Path | None"]
"""Returns the path of a key in a bucket, whether something is there or not; None for a bucket that is not local, or a
key that has no path of its own."""

FindKey = Callable[[str, str], "str | None"]
"""Returns the first key of a bucket that begins with a prefix; None when there is none, or no such bucket."""

STOP_GRACE = 120.0
"""Seconds between SIGTERM and SIGKILL, the service's."""
_DRIVERS, _DRIVER_SCRIPT, _MPI_DRIVER, _SSHD = "sm_drivers", "sm_train.sh", "mpi_driver.py", "/usr/sbin/sshd"
_PLACES = (("OutputDataConfig", "S3OutputPath"), ("CheckpointConfig", "S3Uri"))
_MPI_HINT = (
    "It connects hosts by SSH. headrace's own MPI needs none: keep `distributed` and `source_code` out of ModelTrainer "
    'and give it hyperparameters={"sagemaker_program": "train.py", "sagemaker_submit_directory": '
    '"s3://BUCKET/sourcedir.tar.gz", "sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}; '
    "or use distributed=Torchrun()"
)


@dataclass(frozen=True)
class JobMaker:
    """Makes jobs of requests.

    Args:
        settings: the engine that runs them, with its options.
        find: the endpoint's buckets.
        find_key: their objects.
        images: which Python stands for which image.
    """

    settings: EngineSettings
    find: FindPath
    find_key: FindKey
    images: tuple[ImageRule, ...] = ()

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self.settings.engine

    def check(self, request: Mapping[str, object]) -> Job:
        """Checks a request against its shape, the rules of jobs and those of the engine. Returns its job.

        Raises:
            ServiceError: with everything that is wrong.
        """
        try:
            job = Job.from_request(request)
            job.check_engine(self.engine)
        except JobInvalid as error:
            raise refusal(error.problems) from error
        except EngineRefused as error:
            raise ServiceError("ValidationException", str(error)) from error
        return job

    def check_places(self, request: Mapping[str, object], region: str) -> None:
        """Checks that what a request reads is there, and where it writes, and what the drivers that it brings need.

        Raises:
            ServiceError: with everything that is missing.
        """
        if missing := missing_places(request, region, self.find, self.find_key):
            raise ServiceError("ValidationException", " ".join(missing))
        if self.settings.shares_files and (lacking := self._lacking_for_mpi(request)):
            raise ServiceError("ValidationException", f"{_MPI_DRIVER}: {' and '.join(lacking)}. {_MPI_HINT}")

    def _lacking_for_mpi(self, request: Mapping[str, object]) -> list[str]:
        """Returns what the MPI driver of SDK 3 needs and would not find; nothing when a request does not bring it."""
        channels = request.get(CHANNELS)
        for channel in channels if isinstance(channels, list) else []:
            if channel.get("ChannelName") != _DRIVERS:
                continue
            folder = str(value_at(channel, ("DataSource", "S3DataSource", "S3Uri")))
            path = path_of(f"{folder.rstrip('/')}/{_DRIVER_SCRIPT}", self.find)
            script = path.read_text(errors="replace") if path is not None and path.is_file() else ""
            if f"/{_MPI_DRIVER}" not in script:
                continue
            python = python_for(_image(request), self.images)[0] or sys.executable
            lacking = [] if Path(_SSHD).exists() else [f"there is no {_SSHD}"]
            if "install -r" not in script and not has_module(python, "paramiko"):
                lacking.append(f"{python} has no paramiko")
            return lacking
        return []

    def note(self, request: Mapping[str, object], job: Job) -> str:
        """Returns what the logs say first: what runs the programs, and that groups which nobody named train alone."""
        sentences = [self._runner(request)]
        unnamed = value_at(dict(request), WORLD_GROUPS) is None
        worlds = [(str(world.kind), world.instance_groups or ()) for world in job.distributions]
        if unnamed and (text := worlds_text(worlds)):
            why = "the request names no groups for its distribution, as on the service"
            sentences.append(f"{text} ({why}; to name them, add the hyperparameter {WORLD_GROUPS[-1]})")
        return "; ".join(sentences)

    def _runner(self, request: Mapping[str, object]) -> str:
        if not self.settings.shares_files:
            return f"image {_image(request) or 'none'}: programs run where the engine {self.engine} starts them"
        return python_for(_image(request), self.images)[1]

    def make(
        self,
        request: Mapping[str, object],
        base_path: Path,
        variables: Mapping[str, str],
        local: Mapping[str, object] | None = None,
    ) -> Job:
        """Returns the job of a request that was checked.

        Args:
            request: its members.
            base_path: what tells the run of this job from others.
            variables: of its programs, unless the request has others of these names.
            local: further options of the local engine, unless its options say otherwise.

        Raises:
            JobInvalid: it breaks a rule all the same.
        """
        read = read_request(request)
        shares = self.settings.shares_files
        data = with_local_paths(read.data, self.find) if shares else dict(read.data)
        python = python_for(_image(request), self.images)[0] if shares else ""
        data = self.settings.put_into(data, STOP_GRACE, python)
        engines = cast("dict[str, dict[str, object]]", data.get("engines", {}))
        if local and self.engine == "local":
            data["engines"] = {"local": {**local, **engines["local"]}}
        given = cast("Mapping[str, str]", data.get("environment", {}))
        job = Job.from_source(data, JobSource(names=read.names), base_path, look=False)
        # After the check: a request may have as many variables as a job may.
        return job.model_copy(update={"environment": {**variables, **given}})


def _image(request: Mapping[str, object]) -> str:
    algorithm = request.get("AlgorithmSpecification")
    return str(algorithm.get("TrainingImage") or "") if isinstance(algorithm, Mapping) else ""


def missing_places(request: Mapping[str, object], region: str, find: FindPath, find_key: FindKey) -> list[str]:
    """Returns what a request names in S3 and is not there, in the service's words: inputs, and buckets to write into.

    Code is not looked for: it is the container that reads it, on the service too.

    Args:
        request: a request that was checked.
        region: of the endpoint.
        find: the endpoint's buckets.
        find_key: their objects.
    """
    role, sentences = str(request.get("RoleArn", "")), []
    channels = request.get(CHANNELS)
    for channel in channels if isinstance(channels, list) else []:
        source = value_at(channel, ("DataSource", "S3DataSource"))
        uri = str(value_at(source, ("S3Uri",)) or "")
        bucket, key = _split(uri)
        first = find_key(bucket, key) if bucket else ""
        is_prefix = value_at(source, ("S3DataType",)) == "S3Prefix"
        if first is None or (bucket and not is_prefix and first != key):  # a manifest is one object
            there = f"that the bucket exists in the selected region ({region}), that objects exist under that S3 prefix"
            rights = f'that the role "{role}" has "s3:ListBucket" permissions on bucket "{bucket}"'
            told = f'No S3 objects found under S3 URL "{uri}" given in input data source.'
            sentences.append(f"{told} Please ensure {there}, and {rights}.")
    for place in _PLACES:
        uri = str(value_at(dict(request), place) or "")
        bucket, _ = _split(uri)
        if bucket and find(bucket, "") is None:
            told = f'The bucket of the S3 URL "{uri}" given in {".".join(place)} does not exist.'
            sentences.append(f"{told} Please ensure that the bucket exists in the selected region ({region}).")
    return sentences


def with_local_paths(data: Mapping[str, object], find: FindPath) -> dict[str, object]:
    """Returns a job's data with paths in place of the addresses of local buckets.

    Args:
        data: keys of a job file, read from a request.
        find: the endpoint's buckets.
    """
    result = with_places(data, lambda uri: str(path_of(uri, find) or uri), lambda channel: _source(channel, find))
    code = path_of(result.get("source_dir"), find)
    return {**result, "source_dir": str(code)} if code is not None and code.is_file() else result


def _source(channel: Mapping[str, object], find: FindPath) -> Mapping[str, object]:
    uri = str(channel.get("s3_data", ""))
    path = path_of(uri, find) if channel.get("s3_data_type", "S3Prefix") == "S3Prefix" else None
    if path is None or not path.is_dir() or (not uri.endswith("/") and _has_siblings(path)):
        return {}
    return {"s3_data": str(path)}


def _has_siblings(path: Path) -> bool:
    """Tells whether the prefix that a folder's name is means something else too."""
    return any(each.name.startswith(path.name) for each in path.parent.iterdir() if each != path)


def path_of(uri: object, find: FindPath) -> Path | None:
    """Returns the path of an address, whether something is there or not; None for what has none."""
    bucket, key = _split(uri)
    return find(bucket, key) if bucket else None


def _split(uri: object) -> tuple[str, str]:
    """Returns bucket and key of an address; empty texts for what is none."""
    if not isinstance(uri, str) or not uri.startswith("s3://"):
        return "", ""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key

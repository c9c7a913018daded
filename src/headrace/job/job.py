"""A training job: what the user asks for, and what follows from it.

A `Job` is valid when it exists: its constructor checks every rule and raises all problems at once. It is pure data; it
does not change, and only `check_files` and `fit` look at the machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

from pydantic import PrivateAttr, ValidationError

from headrace.errors import EngineRefused, JobInvalid, Problem
from headrace.job import job_document
from headrace.job.find_engine import find_engine
from headrace.job.job_document import MAX_BYTES, apply, dump, plain
from headrace.job.model.field_types import JOB_NAME_CHARACTERS, cut_name
from headrace.job.model.fields import InstanceGroup, JobFields, TrainingInput
from headrace.job.model.frozen_model import without_none
from headrace.job.model.job_topology import Structure
from headrace.job.problems import finding as findings
from headrace.job.problems.finding import JobSource
from headrace.job.rules import job_rules, local_files
from headrace.job.rules.engine_rules import Unused, service_rules
from headrace.job.rules.kubernetes_rules import in_volumes
from headrace.job.run_handle import CtrlC, RunHandle, wait_for_success
from headrace.job.sagemaker.check import check_request, is_request
from headrace.job.sagemaker.translation import (
    HYPERPARAMETERS,
    Translated,
    beyond_request,
    read_request,
    unfit,
    with_local_places,
    write_request,
)


class _Engine(Protocol):
    def start(self, job: Job, detach: bool) -> RunHandle: ...


class Job(Structure):
    """One training job.

    Args:
        job_name: 1 to 63 letters, digits and hyphens.
        source_dir: folder with the code, relative to `base_path`, or an archive.
        entry_point: script inside `source_dir`, ``-m module``, or the package's name; without `source_dir` a script
            of this machine, which alone is copied.
        hyperparameters: become the program's arguments.
        environment: variables of every program.
        instance_groups: 1 to 5 groups of machines; or else:
        instance_type: the one type of machine, with
        instance_count: how many of it.
        inputs: channels: a path, a `TrainingInput` or a mapping each.
        distribution: how ranks are started, and on which groups; one mapping or a list.
        data_service: which groups run data workers.
        completion: which groups decide that the job has succeeded.
        stopping_condition: time limit.
        engines: options of the engines.
        base_path: what relative paths are relative to; by default the current directory.
        **others: every other key of a job file; see `JobFields`.

    Raises:
        JobInvalid: with every problem of the job.
    """

    _base_path: Path = PrivateAttr(default_factory=Path)
    _source: findings.JobSource = PrivateAttr(default_factory=findings.JobSource)

    def __init__(
        self,
        job_name: str | None = None,
        *,
        source_dir: str | os.PathLike[str] | None = None,
        entry_point: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        instance_groups: Sequence[InstanceGroup | Mapping[str, object]] | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        inputs: Mapping[str, TrainingInput | str | os.PathLike[str] | Mapping[str, object]] | None = None,
        distribution: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        data_service: Mapping[str, object] | None = None,
        completion: Mapping[str, object] | None = None,
        stopping_condition: Mapping[str, object] | None = None,
        engines: Mapping[str, object] | None = None,
        base_path: str | os.PathLike[str] | None = None,
        **others: object,
    ) -> None:
        given: dict[str, object] = {
            "job_name": job_name,
            "source_dir": source_dir,
            "entry_point": entry_point,
            "hyperparameters": hyperparameters,
            "environment": environment,
            "instance_groups": instance_groups,
            "instance_type": instance_type,
            "instance_count": instance_count,
            "inputs": inputs,
            "distribution": distribution,
            "data_service": data_service,
            "completion": completion,
            "stopping_condition": stopping_condition,
            "engines": engines,
            **others,
        }
        data, wrong = plain(given)
        wrong += find_problems(data)
        if wrong:
            raise JobInvalid(findings.JobSource().problems(wrong))
        super().__init__(**data)  # type: ignore[arg-type]  # it was checked just now
        self._base_path = Path.cwd() if base_path is None else Path(base_path).absolute()

    @classmethod
    def from_source(
        cls,
        data: Mapping[str, object],
        source: findings.JobSource,
        base_path: Path,
        wrong: Sequence[findings.Finding] = (),
        look: bool = True,
    ) -> Job:
        """Makes a job of plain data that was read from a file.

        Args:
            data: keys of the job file and their values.
            source: file and lines, for messages.
            base_path: what relative paths are relative to.
            wrong: what is known to be wrong already.
            look: whether files are looked for.

        Raises:
            JobInvalid: with all problems: those given, those of the data, and files that are not there.
        """
        places = {finding.path for finding in wrong} if source.names else set()

        def is_found(finding: findings.Finding) -> bool:
            path = source.named(finding.path)
            return (*path, "ChannelName") in places or _within(path, places)

        fields, broken = _checked(data)
        problems = [*wrong, *(finding for finding in broken if finding.code or not is_found(finding))]
        if look:
            passed_by = {finding.path for finding in problems}
            missing = _spelt(local_files.missing(fields, base_path, {*in_volumes(fields)}), data)
            problems += [each for each in missing if each.path not in passed_by and not is_found(each)]
        if problems:
            raise JobInvalid(source.problems(problems))
        job = cls.__new__(cls)
        Structure.__init__(job, **without_none(data))  # type: ignore[arg-type]  # it was checked just now
        job._base_path, job._source = base_path.absolute(), source
        return job

    @classmethod
    def from_request(cls, request: Mapping[str, object], base_path: str | os.PathLike[str] | None = None) -> Job:
        """Makes a job of a CreateTrainingJob request, as boto3 takes it or as JSON holds it.

        What a job has no key for is kept in `request_extras`. The reserved hyperparameters of SageMaker's containers
        mean what they mean there.

        Args:
            request: its members.
            base_path: what relative paths of later changes are relative to; by default the current directory.

        Raises:
            JobInvalid: with every limit that the request breaks, at its place in the request.
        """
        read = read_request(request)
        source = findings.JobSource(names=read.names)
        base = Path.cwd() if base_path is None else Path(base_path).absolute()
        wrong = list(with_local_places(check_request(request), read))
        return cls.from_source(read.data, source, base, wrong, look=False)

    def to_request(self, submit_directory: str = "") -> dict[str, object]:
        """Returns the CreateTrainingJob request of this job. Pure: nothing is uploaded or sent.

        A job that was made of a request gives an equal one back. `beyond_request` names what no request can hold.

        Args:
            submit_directory: ``s3://`` URI of the uploaded code, for a `source_dir` on this machine.

        Raises:
            JobInvalid: with all that SageMaker refuses, and all that is not in S3.
        """
        wrong = [*self._spelt(service_rules(self)), *unfit(self, submit_directory)]
        request = write_request(self, submit_directory)
        wrong += [] if wrong else check_request(request)
        if wrong:
            raise JobInvalid(self._source.problems(wrong))
        return request

    def request_form(self) -> dict[str, object]:
        """Returns the job in the words of a request, unchecked: what a description of it shows."""
        return write_request(self, "")

    def request_texts_of(self, group_name: str) -> dict[str, str] | None:
        """Returns a group's hyperparameters as the request has them that this job was made of; None for another job."""
        if not self._source.names:
            return None
        texts = self.request_form().get(HYPERPARAMETERS, {})
        return {**cast("dict[str, str]", texts), **self.hyperparameter_texts_of(group_name)}

    def beyond_request(self) -> dict[str, str]:
        """Returns the keys of this job that a request has no member for, each with what becomes of it."""
        return beyond_request(self)

    def __eq__(self, other: object) -> bool:
        """Two jobs are equal when they ask for the same. Where they were written does not count."""
        return isinstance(other, Job) and all(
            getattr(self, name) == getattr(other, name) for name in JobFields.model_fields
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def base_path(self) -> Path:
        """What relative paths are relative to: the job file's folder, or the current directory of the Python caller."""
        return self._base_path

    def problem(self, path: findings.Path, message: str, *, seen: str = "", hint: str = "") -> Problem:
        """Makes a problem at a place in this job, with file and line when it was read from a file.

        For what only an engine can know, such as a CPU that does not exist.

        Args:
            path: keys and indices, e.g. ``("engines", "local", "ports", "feed")``.
            message: what is wrong and what is allowed.
            seen: the value, as text.
            hint: what to do.
        """
        return self._source.problem(findings.Finding(path, message, seen, hint))

    def without_effect(self, engine: str = "local") -> tuple[Unused, ...]:
        """Returns what of this job is accepted and has no effect in an engine, each with the reason.

        Raises:
            EngineRefused: no engine of that name.
        """
        idle = getattr(find_engine(engine), "without_effect", None)
        return () if idle is None else tuple(idle(self))

    def check_engine(self, engine: str) -> None:
        """Checks the rules of one engine.

        Raises:
            JobInvalid: with everything that this engine refuses.
            EngineRefused: no engine of that name.
        """
        rules = getattr(find_engine(engine), "rules", None)
        refused = [] if rules is None else self._spelt(rules(self))
        if refused:
            raise JobInvalid(self._source.problems(refused))

    def _spelt(self, broken: Iterable[findings.Finding]) -> list[findings.Finding]:
        return _spelt(broken, self.to_data())

    def check_files(self, elsewhere: Collection[findings.Path] = ()) -> None:
        """Checks that the code and every channel's folder are there.

        Args:
            elsewhere: places of the job that name something which is not on this machine.

        Raises:
            JobInvalid: with everything that is not.
        """
        wrong = list(local_files.missing(self, self.base_path, elsewhere, images=False))
        if wrong:
            raise JobInvalid(self._source.problems(wrong))

    def check_volumes(self) -> None:
        """Checks that channels below the mount path of a volume of pods are here too, for an engine without pods.

        Raises:
            JobInvalid: with every such channel whose data are not on this machine.
        """
        ours = set(in_volumes(self))
        wrong = [finding for finding in local_files.missing(self, self.base_path) if finding.path in ours]
        if wrong:
            raise JobInvalid(self._source.problems(wrong))

    def hint_after(self, lines: Sequence[str]) -> str:
        """Returns what to do about a failure that the way the job was written explains; empty when it does not.

        Args:
            lines: the last output of the program that failed.
        """
        entry_points = dict.fromkeys(self.entry_point_of(group.instance_group_name) for group in self.groups)
        if as_module := local_files.as_module(entry_points, self.source_dir, self.base_path, lines):
            source_dir, entry_point = as_module
            return (
                "a script that imports with a dot is started as a module of its package: "
                f"give source_dir {source_dir!r} and entry_point {entry_point!r}"
            )
        missed = local_files.left_beside(self.scripts, self.base_path, self.dependencies, lines)
        if missed is None:
            return ""
        module, script = missed
        folder, name = os.path.split(script)
        return (
            f"{module} lies beside {name}, but without source_dir the script alone is copied: "
            f"give source_dir {folder or '.'!r} and entry_point {name!r}"
        )

    def to_data(self) -> dict[str, object]:
        """Returns the job as plain data, with its defaults."""
        return dump(self, JobFields)

    def to_yaml(self) -> str:
        """Returns a job file for this job. Relative paths stay as they are."""
        return job_document.write(self.to_data())

    def to_json(self) -> str:
        """Returns the job as JSON, with the keys of the job file; it is a job file as well."""
        return job_document.write_json(self.to_data())

    def fit(
        self,
        engine: str = "local",
        wait: bool = True,
        logs: bool = True,
        detach: bool = False,
        *,
        role: str | None = None,
        output_path: str | None = None,
        region: str | None = None,
    ) -> RunHandle:
        """Runs the job. Standard error says how its hosts are isolated.

        Args:
            engine: where instances come from.
            wait: return when the run has ended.
            logs: while waiting, print the output of all programs.
            detach: the run lives without this process. Else it is stopped when this process ends.
            role: in place of the job's own.
            output_path: likewise.
            region: where SageMaker runs the job, in place of ``engines.sagemaker.region``.

        Raises:
            UsageError: the job cannot start; nothing was started.
            RunFailed: the run that was waited for did not succeed.
            RunInterrupted: Ctrl-C; the run was stopped, and the program ends.
        """
        job = self._changed(engine, role, output_path, region)
        starter = cast(_Engine, find_engine(engine, "start"))
        if detach or not wait:
            handle = job._started(starter, detach)
            if wait:
                wait_for_success(handle, logs=logs, job=job)
            return handle
        with CtrlC() as ctrl_c:
            handle = job._started(starter, detach)
            ctrl_c.stops(handle)
            wait_for_success(handle, logs=logs, job=job)
        return handle

    def _changed(self, engine: str, role: str | None, output_path: str | None, region: str | None) -> Job:
        """Returns the job with what `fit` was given. Raises JobInvalid, EngineRefused."""
        if region is not None and engine != "sagemaker":
            raise EngineRefused(f"the {engine} engine has no regions", "leave region out")
        changed: dict[str, object] = {}
        if role is not None:
            changed["role"] = role
        if output_path is not None:
            changed["output_path"] = output_path
        if region is not None:
            options = self.sagemaker.model_copy(update={"region": region})
            changed["engines"] = self.engines.model_copy(update={"sagemaker": options})
        return with_values(self, changed)

    def _started(self, engine: _Engine, detach: bool) -> RunHandle:
        handle = engine.start(self, detach)
        print(handle.isolation, file=sys.stderr, flush=True)
        return handle


def _within(path: findings.Path, places: set[findings.Path]) -> bool:
    """Tells whether a place, or one around it, was found wrong already."""
    return any(path[:length] in places for length in range(1, len(path) + 1))


def with_values(job: Job, changed: Mapping[str, object]) -> Job:
    """Returns a job with other values of its fields. Raises JobInvalid."""
    if not changed:
        return job
    changed_job = job.model_copy(update=changed)
    wrong = find_problems(changed_job.to_data())
    if wrong:
        raise JobInvalid(job._source.problems(wrong))
    return changed_job


def find_problems(data: Mapping[str, object]) -> list[findings.Finding]:
    """Returns every broken rule of a job that is given as plain data. Pure: no file is looked for."""
    return _checked(data)[1]


def missing_files(data: Mapping[str, object], base: Path, on_pods: bool) -> list[findings.Finding]:
    """Returns what a job that is given as plain data names and is not on this machine.

    Args:
        data: the job.
        base: what relative paths are relative to.
        on_pods: its hosts are pods, so that channels in their volumes need not be here.
    """
    fields = findings.fitting(Structure, data)
    return _spelt(local_files.missing(fields, base, {*in_volumes(fields)} if on_pods else ()), data)


def _checked(data: Mapping[str, object]) -> tuple[Structure, list[findings.Finding]]:
    """Returns the job without what is wrong in it, and every broken rule."""
    short, wrong = job_rules.shortened(data), list[findings.Finding]()
    try:
        fields = Structure.model_validate(short)
    except ValidationError as error:
        fields, wrong = findings.fitting(Structure, short), [*findings.explain(error, JobFields, short)]
    return fields, [*wrong, *job_rules.sizes(data), *_spelt(job_rules.check(fields), short)]


def _spelt(broken: Iterable[findings.Finding], data: Mapping[str, object]) -> list[findings.Finding]:
    return [replace(finding, path=findings.spelt(finding.path, data, JobFields)) for finding in broken]


_PROGRAMS = (".py", ".sh", ".ipynb")


def load_job(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Job:
    """Reads a job file, applies overrides and checks everything, the files that it names included.

    Args:
        path: the job file, or a file with a CreateTrainingJob request; the keys tell which it is. Relative paths in it
            are relative to its folder.
        overrides: ``a.b.c=value`` each, as after ``--set``.

    Returns:
        The job. Without `job_name` it is named after the file.

    Raises:
        JobInvalid: with all problems, in the order of the file, those of overrides last.
    """
    file = Path(path)
    name = os.fspath(path)
    written = job_document.read(_text(file, name))
    if written.findings and not written.data:  # nothing was read: overrides of nothing say nothing
        raise JobInvalid(JobSource(name, written.lines, {}).problems(written.findings))
    read = read_request(written.data) if is_request(written.data) else Translated(written.data)
    final = apply(read.data, overrides)
    source = JobSource(name, written.lines, final.texts, read.names)
    wrong = written.findings + final.findings
    if read.names:
        replaced = {place for key, place in read.names.items() if any(key[: len(path)] == path for path in final.texts)}
        refused = (finding for finding in check_request(written.data) if finding.path not in replaced)
        wrong += with_local_places(refused, read)
    if wrong and not final.data:
        raise JobInvalid(source.problems(wrong))
    data = {key: value for key, value in final.data.items() if value is not None}
    stem = file.name.rpartition(".")[0] or file.name  # pathlib has another one of "....yaml" since Python 3.14
    return Job.from_source({"job_name": job_name_of(stem), **data}, source, file.absolute().parent, wrong)


def job_name_of(stem: str) -> str:
    """Makes a job name of a file's name: every run of other characters than letters and digits becomes a hyphen.

    >>> job_name_of("my_job v2")
    'my-job-v2'
    """
    return cut_name(re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-"), JOB_NAME_CHARACTERS) or "job"


def _text(file: Path, name: str) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _unreadable(name, "does not exist", hint="give the path of a job file") from None
    except IsADirectoryError:
        raise _unreadable(name, "is a folder", hint="give the path of a job file, e.g. job.yaml in it") from None
    except OSError as error:
        raise _unreadable(name, f"cannot be read: {error.strerror}") from None
    if file.suffix in _PROGRAMS:
        hint = f"`headrace init {file}` writes a job file for it"
        raise _unreadable(name, "is a program, not a job file", hint=hint)
    if len(raw) > MAX_BYTES:
        hint = "put data into a channel, and code into source_dir"
        raise _unreadable(name, f"must have at most {MAX_BYTES // 1_000_000} MB", hint=hint)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unreadable(name, "must be UTF-8 text", line=line) from None


def _unreadable(name: str, message: str, line: int = 0, hint: str = "") -> JobInvalid:
    return JobInvalid((Problem("job file", message, file=name, line=line, hint=hint),))

"""Reads a job file, or a CreateTrainingJob request, from the disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from headrace.errors import JobInvalid, Problem
from headrace.job.file import yaml_document
from headrace.job.file.overrides import apply
from headrace.job.file.yaml_document import MAX_BYTES
from headrace.job.job import Job
from headrace.job.model.field_types import JOB_NAME_CHARACTERS, cut_name
from headrace.job.problems.finding import JobSource
from headrace.job.sagemaker.check import check_request, is_request
from headrace.job.sagemaker.from_request import Translated, read_request, with_local_places

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
    written = yaml_document.read(_text(file, name))
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

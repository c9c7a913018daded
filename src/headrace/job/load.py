"""Reads a job file from the disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from headrace.errors import JobInvalid, Problem
from headrace.job import document
from headrace.job.findings import Source
from headrace.job.job import Job
from headrace.job.overrides import apply


def load_job(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Job:
    """Reads a job file, applies overrides and checks everything, the files that it names included.

    Args:
        path: the job file. Relative paths in it are relative to its folder.
        overrides: ``a.b.c=value`` each, as after ``--set``.

    Returns:
        The job. Without `job_name` it is named after the file.

    Raises:
        JobInvalid: with all problems, in the order of the file, those of overrides last.
    """
    file = Path(path)
    name = os.fspath(path)
    written = document.read(_text(file, name))
    if written.findings and not written.data:  # nothing was read: overrides of nothing say nothing
        raise JobInvalid(Source(name, written.lines, {}).problems(written.findings))
    final = apply(written.data, overrides)
    source = Source(name, written.lines, final.texts)
    wrong = written.findings + final.findings
    if wrong and not final.data:
        raise JobInvalid(source.problems(wrong))
    data = {key: value for key, value in final.data.items() if value is not None}
    return Job.from_source({"job_name": job_name_of(file.stem), **data}, source, file.absolute().parent, wrong)


def job_name_of(stem: str) -> str:
    """Makes a job name of a file's name: every run of other characters than letters and digits becomes a hyphen.

    >>> job_name_of("my_job v2")
    'my-job-v2'
    """
    return re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-")[:63].strip("-") or "job"


def _text(file: Path, name: str) -> str:
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise _unreadable(name, "does not exist", hint="give the path of a job file") from None
    except IsADirectoryError:
        raise _unreadable(name, "is a folder", hint="give the path of a job file, e.g. job.yaml in it") from None
    except OSError as error:
        raise _unreadable(name, f"cannot be read: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unreadable(name, "must be UTF-8 text", line=line) from None


def _unreadable(name: str, message: str, line: int = 0, hint: str = "") -> JobInvalid:
    return JobInvalid((Problem("job file", message, file=name, line=line, hint=hint),))

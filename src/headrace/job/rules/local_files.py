"""What a job names on this machine: its code and its channels. The only module of this room that asks the disk."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path as FilePath

from headrace.job.model import path_types
from headrace.job.model.job_topology import Structure, entry_points
from headrace.job.problems.finding import Finding, Path
from headrace.job.rules.kubernetes_rules import is_in_volume

_MISSED = re.compile(r"\bModuleNotFoundError: No module named '(\w+)")  # as Python's tracebacks end
_RELATIVE = "attempted relative import with no known parent package"
_ON_PODS = (
    "pods do not see the folders of this machine: for the kubernetes engine give an s3:// URI, "
    "or a path below the mount_path of one of engines.kubernetes.volumes"
)
_ON_VOLUME = "only pods have it, by a volume of the job: use --engine kubernetes, or name a folder of this machine"
_LOOKED_AT = 1000
"""Files of a channel that are looked at: a check of a job takes milliseconds."""
PREPARE = "prepare.py"
"""A script of this name beside data that are missing is taken for the one that makes them: the hint names it."""


def missing(job: Structure, base: FilePath, elsewhere: Collection[Path] = (), images: bool = True) -> Iterator[Finding]:
    """Yields what a job names and is not there.

    Args:
        job: the job; what of it is None is wrong and is not looked for.
        base: what relative paths are relative to.
        elsewhere: places of the values that name something which is not on this machine.
        images: whether an image may hold the entry point of a job without `source_dir`.
    """
    yield from _code(job, base, elsewhere, images)
    for name, channel in job.inputs.items():
        path, text = ("inputs", name, "s3_data"), channel.s3_data
        if text and path not in elsewhere and not channel.is_remote:
            place = channel.local_path(base)
            for finding in _is("folder" if channel.s3_data_type == "S3Prefix" else "file", path, text, place):
                hint = _ON_VOLUME if is_in_volume(job.kubernetes, text) else _ON_PODS
                yield finding if finding.hint or not job.engines.kubernetes else replace(finding, hint=hint)
            if closed := _closed(place):
                message = f"must be data that you may read; {closed} is closed to you"
                yield Finding(path, message, repr(text), "`ls -ld` shows its owner and mode; chmod or chown opens it")


def _closed(place: FilePath) -> FilePath | None:
    """Returns what of a channel's data this user may not read: the place itself, or the first such file of those looked
    at. Folders below that are closed, as ``lost+found`` is, are passed over."""
    if os.path.isfile(place):
        return place if not os.access(place, os.R_OK) else None
    if os.path.isdir(place) and not os.access(place, os.R_OK | os.X_OK):
        return place
    files = (FilePath(folder, name) for folder, _, names in os.walk(place) for name in sorted(names))
    return next((file for file in islice(files, _LOOKED_AT) if not _readable(file)), None)


def _readable(file: FilePath) -> bool:
    return os.access(file, os.R_OK) or not os.path.isfile(file)  # a link to nothing is no data


def _code(job: Structure, base: FilePath, elsewhere: Collection[Path], images: bool) -> Iterator[Finding]:
    for index, text in enumerate(job.dependencies):
        if text and ("dependencies", index) not in elsewhere:
            yield from _is("file or folder", ("dependencies", index), text, base / text)
    if "source_dir" not in job.model_fields_set and not (images and job.image_uri):
        yield from _scripts(job, base, elsewhere)
    if not job.source_dir or ("source_dir",) in elsewhere or path_types.is_remote(job.source_dir):
        return
    code = base / path_types.local_form(job.source_dir)
    if path_types.is_archive(job.source_dir):
        yield from _is("file", ("source_dir",), job.source_dir, code)
        return
    problems = list(_is("folder", ("source_dir",), job.source_dir, code))
    yield from problems
    for path, text in () if problems else _programs(job):
        if path not in elsewhere:
            yield from _program(path, text, code)


def _scripts(job: Structure, base: FilePath, elsewhere: Collection[Path]) -> Iterator[Finding]:
    """Without `source_dir` the scripts themselves are all the code, with the dependencies beside them."""
    beside = {FilePath(text).name: base / text for text in filter(None, job.dependencies)}
    for path, text in _programs(job):
        if path in elsewhere:
            continue
        if path[-1] == "requirements":
            first, *inside = FilePath(text).parts
            if first not in beside or not os.path.isfile(beside[first].joinpath(*inside)):
                hint = "name the folder that holds it and the entry point: source_dir"
                yield Finding(path, "must be a file in source_dir, or in dependencies", repr(text), hint)
        elif path_types.is_file(text):
            hint = "give a script of this machine, or the folder that holds it: --set source_dir=FOLDER"
            for finding in _is("file", path, text, base / text):
                yield replace(finding, hint=finding.hint or hint)


def left_beside(
    scripts: Iterable[str], base: FilePath, dependencies: Iterable[str], lines: Sequence[str]
) -> tuple[str, str] | None:
    """Finds the module that a program missed, beside the script that was copied without it.

    Args:
        scripts: entry points of a job without `source_dir`.
        base: what they are relative to.
        dependencies: of the job; they were copied too.
        lines: the last output of the program.

    Returns:
        The module's file and the script; None when no such module was missed.
    """
    copied = {FilePath(name).name for name in dependencies}
    missed = [match[1] for line in lines if (match := _MISSED.search(line))]
    for script in scripts:
        for module in missed:
            for name in (f"{module}.py", module):
                if name not in copied and os.path.exists((base / script).with_name(name)):
                    return name, script
    return None


def as_module(
    entry_points: Iterable[str], source_dir: str, base: FilePath, lines: Sequence[str]
) -> tuple[str, str] | None:
    """Finds how a script is started whose relative import failed: as a module of its package.

    Args:
        entry_points: of a job and its groups.
        source_dir: of the job.
        base: what it is relative to.
        lines: the last output of the program.

    Returns:
        `source_dir` and `entry_point`; None when no relative import failed, or it is not known in which folder.
    """
    if not any(_RELATIVE in line for line in lines):
        return None
    for entry_point in entry_points:
        folder = FilePath(path_types.local_form(source_dir))
        if not entry_point.endswith(".py") or "://" in path_types.local_form(source_dir):
            continue
        script = FilePath(entry_point)
        if not source_dir:  # the script alone was copied
            folder, script = script.parent, FilePath(script.name)
        if len(script.parts) == 1:
            package = folder.name if folder.name not in ("", "..") else (base / folder).resolve().name
            folder, script = FilePath(os.path.normpath(folder / "..")), FilePath(package, script)
        return str(folder), f"-m {'.'.join(script.with_suffix('').parts)}"
    return None


def _programs(job: Structure) -> Iterator[tuple[Path, str]]:
    """Yields every key that names a file of the code, of the job and of its groups."""
    yield from entry_points(job)
    if job.requirements:
        yield ("requirements",), job.requirements
    for index, group in enumerate(job.instance_groups):
        if group.requirements:
            yield ("instance_groups", index, "requirements"), group.requirements


def _program(path: Path, text: str, folder: FilePath) -> Iterator[Finding]:
    if path[-1] == "entry_point" and path_types.module_of(text):
        return  # it may be installed
    if path[-1] == "entry_point" and path_types.is_package(text):
        if not any(
            os.path.isfile(folder / name)
            for name in ("setup.py", "pyproject.toml", text, f"{text}.py", f"{text}/__main__.py")
        ):
            hint = "add a pyproject.toml, or name a script such as train.py"
            message = f"must be a package that source_dir installs; there is no setup.py or pyproject.toml in {folder}"
            yield Finding(path, message, repr(text), hint)
        return
    if os.path.isfile(folder / text):
        return
    near = sorted(file.name for file in folder.glob("*.txt" if path[-1] == "requirements" else "*.py"))
    kind = "file of requirements" if path[-1] == "requirements" else "Python script"
    hint = f"there: {', '.join(near[:8])}" if near else f"there is no {kind} in that folder"
    yield Finding(path, f"must be a file in source_dir; {folder / text} is not a file", repr(text), hint)


def _is(kind: str, path: Path, text: str, place: FilePath) -> Iterator[Finding]:
    """Checks that a path is a ``folder``, a ``file``, or either: a ``file or folder``."""
    actual, trouble = _look(place)
    if actual in kind.split(" or "):
        return
    hint = "name the folder that holds it" if actual == "file" else "" if actual else _makes(path, place)
    if trouble:
        hint = "check the path, and the permissions of the folders above it"
    wrong = f"cannot be looked at: {trouble}" if trouble else f"is a {actual}" if actual else "does not exist"
    yield Finding(path, f"must be a {kind}; {place} {wrong}", repr(text), hint)


def _look(place: FilePath) -> tuple[str, str]:
    """Returns what a path is, ``folder``, ``file``, ``special file`` or nothing, and why that cannot be known."""
    try:
        mode = place.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "", ""
    except OSError as error:
        return "", error.strerror or str(error)
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "special file", ""


def _makes(path: Path, missing_path: FilePath) -> str:
    """Returns the command that makes the data of a channel, empty when no script for it is there.

    The script is looked for in the nearest folder around the missing path that exists.
    """
    target = FilePath(os.path.realpath(missing_path))
    around = next(folder for folder in target.parents if os.path.isdir(folder))
    if path[0] != "inputs" or not os.path.isfile(around / PREPARE):
        return ""
    return shlex.join([_python(), _from_here(around / PREPARE)])


def _python() -> str:
    """Returns how a shell in the working directory calls this Python."""
    program = shutil.which("python")
    same = program is not None and FilePath(program).absolute() == FilePath(sys.executable)
    return "python" if same else _from_here(FilePath(sys.executable))


def _from_here(file: FilePath) -> str:
    return min(str(file), os.path.relpath(file), key=len)

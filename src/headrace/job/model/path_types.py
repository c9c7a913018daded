"""Values that name places: folders, files, archives, `s3://` objects, and what of them a program is.

Whether a place exists is asked elsewhere (`headrace.job.rules.local_files`, the engine); here only how it is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BeforeValidator

from headrace.catalog.aws_facts import why_no_bucket
from headrace.job.model.field_types import AsList, text_of
from headrace.job.problems.finding import broken

OUTSIDE, INSIDE = "must lie inside source_dir", "give its path relative to source_dir"
LOCAL_BUCKET = "headrace-local"
"""The bucket of the estimators, which is a folder of this machine."""
CHECKPOINT_FOLDER = "/opt/ml/checkpoints"

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*)://")
_ALMOST = re.compile(r"(s3|https|file)(?::(?://)?|//)(.*)", re.IGNORECASE | re.DOTALL)
_S3 = re.compile(r"s3://[^/\s]+(?:/.*)?")
_HTTPS = re.compile(r"https://[^/\s]+(?:/.*)?")
_ARCHIVES = (".tar.gz", ".tgz")
_MODULE = re.compile(r"-m\s+([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)")
_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_remote(text: str) -> bool:
    """Tells whether a place is in an object store: ``s3://bucket/prefix``, or its ``https://`` form."""
    return text.startswith(("s3://", "https://"))


def bucket_of(text: str) -> str:
    """Returns the bucket that a place names with ``s3://``; empty for another place."""
    return text.split("/")[2] if text.startswith("s3://") else ""


def names_bucket(text: str) -> bool:
    """Tells whether a place is in a bucket of an object store: ``s3://`` and a name that a bucket can have."""
    bucket = bucket_of(text)
    return bucket not in ("", LOCAL_BUCKET) and not why_no_bucket(bucket)


def is_archive(text: str) -> bool:
    """Tells whether a place is an archive of code: its name ends in ``.tar.gz`` or ``.tgz``."""
    return text.endswith(_ARCHIVES)


def local_form(text: str) -> str:
    """Returns the path that a local place names: without ``file://``."""
    return text.removeprefix("file://")


def module_of(entry_point: str) -> str:
    """Returns the module that an entry point ``-m module`` names; empty for the other kinds."""
    match = _MODULE.fullmatch(entry_point)
    return match[1] if match else ""


def is_script(entry_point: str) -> bool:
    """Tells whether an entry point is a file: ``*.py`` or ``*.sh``."""
    return PurePosixPath(entry_point).suffix in (".py", ".sh") and not module_of(entry_point)


def is_file(entry_point: str) -> bool:
    """Tells whether an entry point names a file, a script or a program: all that can be run without a `source_dir`."""
    return not (module_of(entry_point) or is_package(entry_point))


def is_package(entry_point: str) -> bool:
    """Tells whether an entry point is the name of a package that `source_dir` installs."""
    return _PACKAGE.fullmatch(entry_point) is not None


def _plain(value: object, what: str) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    text = text_of(value)
    if not text or "\0" in text:
        raise broken(f"must be {what}")
    return text


def _meant(text: str, https: bool) -> str:
    """Returns the hint for a place whose scheme is mistyped, as in ``s3:/bucket`` and ``S3://bucket``; else empty."""
    match = _ALMOST.match(text)
    if match is None or text.startswith(("s3://", "https://", "file://")):
        return ""
    scheme, rest = match[1].lower(), match[2]
    if scheme == "https" and not https:
        return ""
    uri = f"file://{rest or '/folder'}" if scheme == "file" else f"{scheme}://{rest.lstrip('/') or 'bucket/prefix'}"
    folder = f"./{text}"
    return f"did you mean {uri!r}?" if "://" in text else f"did you mean {uri!r}? (a folder of this name: {folder!r})"


def place(what: str, *, https: bool = False) -> Callable[[object], str]:
    """Makes the check of a local path, a ``file://`` URI or an ``s3://`` URI.

    Args:
        what: the place in words, e.g. ``the path of a folder``.
        https: whether the ``https://`` form of an S3 URI will do as well.
    """

    rule = "must be a local path or a file:// URI, or an s3:// URI"

    def check(value: object) -> str:
        text = _plain(value, what)
        if meant := _meant(text, https):
            raise broken(rule, hint=meant)
        scheme = _SCHEME.match(text)
        if scheme is None:
            return text
        if scheme[1] == "s3" or (https and scheme[1] == "https"):
            if len(text) > 1024:
                raise broken("must have at most 1024 characters", seen=f"{len(text)} characters")
            if not (_S3 if scheme[1] == "s3" else _HTTPS).fullmatch(text):
                raise broken("must name a bucket: s3://bucket/prefix")
            return text
        if scheme[1] != "file":
            raise broken(rule)
        if text == "file://":
            raise broken("must name a folder after file://")
        return text

    return check


_code = place("the path of a folder")
_output = place("the path of a folder", https=True)


def _source_dir(value: object) -> str:
    text = local_form(_code(value))
    if text.startswith("s3://") and not is_archive(text):
        raise broken("must be an archive when it is in S3: s3://bucket/path/sourcedir.tar.gz")
    return text


def _entry_point(value: object) -> str:
    text = _plain(value, "a script, such as train.py")
    if module_of(text) or is_package(text):
        return text
    if text.startswith("-"):  # Python would take it for an option
        raise broken("must be '-m' and a module when it begins with a hyphen, such as '-m trainer.task'")
    if not is_script(text) and PurePosixPath(text).suffix:
        rule = (
            "must be a script with a name that ends in .py or .sh, a program with a name without an ending, "
            "'-m' and a module, or the name of a package"
        )
        raise broken(rule)
    return str(PurePosixPath(text))


def leads_out(text: str) -> bool:
    """Tells whether a path does not stay inside the folder that it is relative to."""
    path = PurePosixPath(text)
    return path.is_absolute() or ".." in path.parts


def _requirements(value: object) -> str:
    text = _plain(value, "a file of requirements, such as requirements.txt")
    if leads_out(text):
        raise broken(OUTSIDE, hint=INSIDE)
    return str(PurePosixPath(text))


def _dependency(value: object) -> str:
    text = _plain(value, "the path of a file or folder")
    if _SCHEME.match(text):
        raise broken("must be the path of a file or folder on this machine")
    return text


def _kept_place(value: object) -> str:
    text = _plain(value, "a path on the host, such as /tmp/results")
    path = PurePosixPath(text)
    if ".." in path.parts or "\n" in text or not path.name or path.is_relative_to("/opt/ml/output"):
        raise broken("must be a file or folder on the host, or below the working directory, without '..'")
    return str(path)


def _instance_folder(value: object) -> str:
    text = _plain(value, "an absolute path")
    if not text.startswith("/") or ".." in PurePosixPath(text).parts or "\n" in text:
        raise broken("must be an absolute path inside the instance, without '..'")
    if len(text) > 4096:
        raise broken("must have at most 4096 characters", seen=f"{len(text)} characters")
    return text


ChannelPath = Annotated[str, BeforeValidator(place("the path of a folder", https=True))]
SourceDir = Annotated[str, BeforeValidator(_source_dir)]
EntryPoint = Annotated[str, BeforeValidator(_entry_point)]


def _record_place(value: object) -> str:
    text = _output(value)
    if not text.startswith("s3://"):
        raise broken(
            "must be an s3:// URI",
            hint="for a folder, set HEADRACE_HOME: runs and their records are in its folder runs",
        )
    why = why_no_bucket(bucket_of(text))
    if why:
        raise broken(f"must name a bucket: the name {why}")
    return text.rstrip("/")


Requirements = Annotated[str, BeforeValidator(_requirements)]
Dependencies = Annotated[tuple[Annotated[str, BeforeValidator(_dependency)], ...], AsList]
KeptPlaces = Annotated[tuple[Annotated[str, BeforeValidator(_kept_place)], ...], AsList]
OutputPath = Annotated[str, BeforeValidator(_output)]
RecordPlace = Annotated[str, BeforeValidator(_record_place)]
InstanceFolder = Annotated[str, BeforeValidator(_instance_folder)]

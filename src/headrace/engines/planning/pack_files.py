"""Packs what travels to hosts that a platform gives: headrace's own package, files of a run's directory, and wheels of
what headrace needs beside itself.

The same input gives the same bytes, so that what is named after its digest is sent once. Wheels are for another Python
than this one: the installed headrace says which libraries these are, and which versions. They are downloaded once, by
pip with its own settings (PIP_*), and kept below `$HEADRACE_HOME/wheels`, which may be removed at any time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import os
import re
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import headrace
from headrace.child_python import module_command
from headrace.errors import EngineRefused, UsageError
from headrace.home import home_dir
from headrace.install_hint import LIBRARIES
from headrace.private_folders import make_folders

FOLDERS = ("adapters", "agent", "feed", "hosting", "instance", "processes", "runs")
_SUBMITTING = (  # what speaks to a cluster, and what makes the objects that are sent there
    *("kubernetes_engine", "cluster", "kube_login", "submit_run", "fetch_record", "refresh_run", "watch_run"),
    *("kubernetes_job", "objects", "pack_run", "pod_states"),
)
NOT_ON_HOSTS = (
    "adapters/estimator.py",
    "adapters/sdk_session.py",
    *(f"engines/kubernetes/{module}.py" for module in _SUBMITTING),
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


def package_zip(engine: str) -> bytes:
    """Returns headrace's package as an archive that Python runs (`host_start`): the instance side, and what they start.

    Args:
        engine: folder of the engine, relative to the package.
    """
    root = Path(headrace.__file__).parent
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, file in _package_files(root, engine):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, file.read_bytes())
    return out.getvalue()


def _package_files(root: Path, engine: str) -> Iterator[tuple[str, Path]]:
    yield "__main__.py", root / "engines" / "host_start.py"
    files = [*root.glob("*.py"), *(root / "engines").glob("*.py")]
    for folder in (*FOLDERS, engine):
        files += (file for file in (root / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    for file in sorted(files):
        name = file.relative_to(root).as_posix()
        if not name.startswith(NOT_ON_HOSTS):
            yield f"headrace/{name}", file


def files_below(root: Path, names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yields files, folders and symlinks below `root` in order, with their names. What is not there is passed."""
    for name in names:
        path = root / name
        if path.is_symlink() or not path.is_dir():
            if path.is_symlink() or path.exists():
                yield name, path
            continue
        yield name, path
        yield from files_below(root, sorted(f"{name}/{child.name}" for child in path.iterdir()))


def packed(files: Iterable[tuple[str, Path | bytes]], private: Collection[str] = ()) -> bytes:
    """Packs files as ``.tar.gz``: modes stay, owners and times do not.

    Args:
        files: names, and files, folders, symlinks or contents.
        private: names of contents that nobody else may read.
    """
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in files:
            info = tarfile.TarInfo(name)
            if isinstance(file, bytes):
                info.size, info.mode = len(file), 0o600 if name in private else 0o644
                archive.addfile(info, io.BytesIO(file))
            elif file.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(file)  # noqa: PTH115
                archive.addfile(info)
            elif file.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
            else:
                content = file.read_bytes()
                info.size, info.mode = len(content), stat.S_IMODE(file.stat().st_mode)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


_log = logging.getLogger(__name__)

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
"""Those of a Linux with glibc 2.28 or newer, of 2018."""
FOLDER = "wheels"
_TAG = re.compile(r"[:-](?:.*-)?py3(\d{1,2})\b")
_VERSION = 1  # of what is kept


def pythons_of(image: str, py_version: str | None) -> tuple[str, ...]:
    """Returns which Python an image may have: the one that is named, else all that headrace runs on.

    Args:
        image: its URI; the tags of AWS's own images name their Python.
        py_version: ``py312``, if the job says it.

    >>> pythons_of("763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312", None)
    ('3.12',)
    >>> pythons_of("registry.example.com/mill:3", None)
    ('3.10', '3.11', '3.12', '3.13')
    """
    named = re.fullmatch(r"py3\.?(\d{1,2})", py_version or "") or _TAG.search(image.rpartition("/")[2])
    found = f"3.{named[1]}" if named else ""
    return (found,) if found in PYTHONS else PYTHONS


def downloaded_libraries(python: str) -> Path:
    """Returns an archive with the wheels of all libraries for a Python; downloads them if they were not yet.

    Args:
        python: one of `PYTHONS`.

    Raises:
        EngineRefused: they cannot be downloaded.
        OSError: they cannot be kept.
    """
    wanted = list(LIBRARIES.values())
    key = hashlib.sha256(json.dumps([_VERSION, wanted, python, PLATFORMS]).encode()).hexdigest()[:16]
    archive = home_dir() / FOLDER / f"{key}-{python}.zip"
    if archive.is_file():
        return archive
    make_folders(archive.parent)
    _log.warning("the image may lack libraries: their wheels for Python %s are downloaded, once", python)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".new-") as folder:
        _download(wanted, python, Path(folder))
        made = Path(folder, "made")
        made.write_bytes(zipped_wheels(Path(folder)))
        made.replace(archive)
    return archive


def zipped_wheels(folder: Path) -> bytes:
    """Returns the wheels of a folder as an archive; equal wheels give equal bytes. Raises UsageError, OSError."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise UsageError(
            f"{folder} has no wheels", "fill it with `pip download`; see the page sagemaker-runs of the docs"
        )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for wheel in wheels:
            archive.writestr(zipfile.ZipInfo(wheel.name), wheel.read_bytes())
    return out.getvalue()


def _download(wanted: list[str], python: str, folder: Path) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    quiet = ["--no-input", "--disable-pip-version-check", "--quiet", "--retries", "1"]
    which = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python, *platforms]
    command = module_command("pip", "download", *quiet, *which, "--dest", str(folder), *wanted)
    done = subprocess.run(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=dict(os.environ), check=False)
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        why = told[-1] if told else f"pip ended with {done.returncode}"
        hint = (
            "where there is no network, name a folder that was filled elsewhere: engines.sagemaker.wheels (see "
            "the page sagemaker-runs of the docs); for an image that has them write wheels: none"
        )
        raise EngineRefused(f"the wheels for Python {python} cannot be downloaded: {why}", hint)

"""Wheels of what headrace needs on a host beside itself, for another Python than this one: downloaded once, and kept.

The installed headrace says which libraries these are, and which versions. They are kept by what they are for, below
`$HEADRACE_HOME/wheels`, which may be removed at any time. pip downloads them, with its own settings (PIP_*).
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

from headrace.child_python import module_command
from headrace.errors import EngineRefused, UsageError
from headrace.home import home_dir
from headrace.host_libraries import LIBRARIES
from headrace.private_folders import make_folders

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

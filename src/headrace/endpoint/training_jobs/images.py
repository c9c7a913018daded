"""Which Python stands for a container image: this machine runs programs, not images.

A rule is a name and a Python. The name may be the image's repository (``pytorch-training``), with a tag or its
beginning (``pytorch-training:2.1``), or a pattern with ``*`` that the whole address must match. The first rule that
fits counts; without one the Python of headrace does.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.child_python import runs_in
from headrace.errors import UsageError

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

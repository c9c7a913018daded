"""A folder with a job's code and data, and a way to try job files in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import JobInvalid, Problem
from headrace.job import Job, load_job

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a job file beside ``code/train.py``, ``data`` and ``more`` and returns its path, relative to the cwd."""
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "train.py").write_text("")
    (tmp_path / "code" / "deep" / "train.py").write_text("")
    for folder in ("data", "more"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)

    def write_file(text: str) -> Path:
        (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
        return Path("job.yaml")

    return write_file


@pytest.fixture
def load(write: Write) -> Callable[..., Job]:
    """Loads a job of its text, and of overrides."""
    return lambda text, *overrides: load_job(write(text), overrides)


@pytest.fixture
def problems(load: Callable[..., Job]) -> Callable[..., tuple[Problem, ...]]:
    """Returns the problems of a job's text; none when it loads."""

    def of(text: str, *overrides: str) -> tuple[Problem, ...]:
        try:
            load(text, *overrides)
        except JobInvalid as error:
            return error.problems
        return ()

    return of

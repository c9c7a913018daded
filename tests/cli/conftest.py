"""Fixtures: a command line, and small job files."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Cli, Imported

from objectstore import free_port


@pytest.fixture(scope="session")
def imported() -> Iterator[Imported]:
    process = Imported()
    yield process
    process.close()


@pytest.fixture
def cli(tmp_path: Path, imported: Imported) -> Cli:
    return Cli(tmp_path, imported)


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., str]:
    """Makes a job file of one script on one host, with ports that are free."""

    def make(script: str, name: str = "small", extra: str = "") -> str:
        code = tmp_path / f"{name}-code"
        code.mkdir()
        (code / "train.py").write_text(textwrap.dedent(script))
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"job_name: {name}\n"
            f"source_dir: {code.name}\n"
            "entry_point: train.py\n"
            "hyperparameters: {epochs: 2, note: 'a b'}\n"
            "instance_groups:\n"
            "  - {name: dnn, type: ml.m5.large, count: 1}\n"
            "engines:\n"
            "  local:\n"
            "    stop_grace: 5\n"
            f"    ports: {{control: {free_port()}, feed: {free_port()}, master: {free_port()}}}\n" + extra
        )
        return str(path)

    return make

"""A run is removed with all that is in it and nothing outside, whatever programs have left; a rule chooses which."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.own_runs import started_here
from headrace.runs import RunPaths, create_run
from headrace.runs.disk_use import Ended, remove_run, size_of, to_prune


@pytest.mark.promise("running", "a run is removed with all that is in it and nothing outside, never while it goes on")
def test_a_run_goes_with_all_that_is_in_it_and_nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, other = create_run("one", runs=tmp_path / "runs"), create_run("one", runs=tmp_path / "runs")
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "folder" / "file").write_text("stays")
    tree = paths.host("algo-1")
    (tree / "code" / "closed" / "inside").mkdir(parents=True)
    (tree / "code" / "closed" / "inside" / "file").write_text("x")
    (tree / "link").symlink_to(outside / "folder")
    (tree / "code" / "closed" / "inside" / "link").symlink_to(outside)
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tree)  # a socket's path is short
        bound.bind("socket")
    os.link(outside / "folder" / "file", tree / "hard")
    (tree / "code" / "closed" / "inside").chmod(0)
    (tree / "code" / "closed").chmod(0)
    before = (outside / "folder" / "file").stat().st_mode
    remove_run(paths)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [other.id]
    assert (outside / "folder" / "file").read_text() == "stays"
    assert (outside / "folder" / "file").stat().st_mode == before
    assert started_here(other.root)
    assert len([*(tmp_path / f"started-{os.geteuid()}").iterdir()]) == 1, "the list of own runs has the other one"


@pytest.mark.promise("running", "a run is removed with all that is in it and nothing outside, never while it goes on")
def test_a_link_in_the_place_of_a_run_is_not_followed(tmp_path: Path) -> None:
    real = create_run("one", runs=tmp_path / "elsewhere")
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / real.id).symlink_to(real.root)
    with pytest.raises(UsageError, match="is a link"):
        remove_run(RunPaths(runs / real.id))
    assert real.header.is_file()


def test_the_size_of_a_run_counts_what_it_takes_once_and_nothing_behind_links(tmp_path: Path) -> None:
    paths = create_run("one", runs=tmp_path / "runs")
    before = size_of(paths)
    (tmp_path / "big").write_bytes(os.urandom(1_000_000))
    (paths.root / "link").symlink_to(tmp_path / "big")
    (paths.root / "file").write_bytes(os.urandom(500_000))
    os.link(paths.root / "file", paths.root / "again")
    assert 500_000 <= size_of(paths) - before < 520_000


@pytest.mark.parametrize(
    ("older", "keep", "gone"),
    [(None, 2, [0]), (50.0, 0, [0, 1, 10]), (50.0, 2, [0]), (95.0, 0, []), (0.0, 3, []), (None, 0, [0, 1, 10, 2, 11])],
)
def test_a_rule_keeps_the_young_and_the_newest_of_each_job(older: float | None, keep: int, gone: list[int]) -> None:
    ends = {0: 10.0, 1: 20.0, 2: 90.0, 10: 45.0, 11: 95.0}
    runs = {number: Ended("ab"[number // 10], end, (RunPaths(Path(f"/r/{number}")),)) for number, end in ends.items()}
    assert to_prune(runs.values(), older, keep, now=100.0) == [runs[number] for number in gone]

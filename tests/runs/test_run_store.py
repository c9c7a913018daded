"""Making runs and finding them: atomic directories, ids, names, the process that answers for a run."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import RunNotFound
from headrace.runs import (
    Run,
    RunPaths,
    adopt,
    create_run,
    give_to_engine,
    list_runs,
    process_start_time,
    read_header,
    store,
    supervisor_alive,
)
from headrace.runs.describe import run_line
from headrace.runs.state import state_of
from headrace.runs.store import RunHeader, job_name_of


def test_a_new_run_is_private_and_has_its_header(tmp_path: Path) -> None:
    paths = create_run("digits", "local", tmp_path / "runs")
    assert re.fullmatch(r"digits-\d{8}-\d{6}-[0-9a-f]{4}", paths.id)
    assert stat.S_IMODE(paths.root.stat().st_mode) == 0o700
    header = read_header(paths)
    assert (header.run_id, header.job_name, header.engine) == (paths.id, "digits", "local")
    assert supervisor_alive(header)
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == [paths.id]


def test_a_run_that_was_killed_before_anything_was_written_of_it_has_no_time_that_goes_on(tmp_path: Path) -> None:
    run = Run(create_run("j", runs=tmp_path, created=1000.0))
    lines = [run_line(run, now, state_of([], supervised=False)) for now in (1010.0, 1e6)]
    assert [(line.status, line.seconds) for line in lines] == [("Failed", 0.0)] * 2


def test_the_id_holds_the_time_in_utc(tmp_path: Path) -> None:
    assert create_run("j", runs=tmp_path, created=1_795_201_262.9).id.startswith("j-20261120-190102-")


def test_many_runs_of_one_second_get_ids_of_their_own(tmp_path: Path) -> None:
    made: list[RunPaths] = []

    def make() -> None:
        made.extend(create_run("j", runs=tmp_path, created=1000.0) for _ in range(20))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({paths.id for paths in made}) == 80
    assert all(read_header(paths).run_id == paths.id for paths in made)


def test_a_taken_id_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("headrace.runs.store.secrets.token_hex", lambda _: next(tokens))
    first = create_run("j", runs=tmp_path, created=1000.0)
    second = create_run("j", runs=tmp_path, created=1000.0)
    assert first.id.endswith("aaaa")
    assert second.id.endswith("bbbb")


def test_adopt_hands_the_run_to_another_process_whose_death_is_seen(tmp_path: Path) -> None:
    paths = create_run("j", runs=tmp_path)
    code = f"""
import sys
from pathlib import Path
from headrace.runs import RunPaths, adopt
adopt(RunPaths(Path({str(paths.root)!r})))
print("adopted", flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline() == b"adopted\n"
        header = read_header(paths)
        assert header.supervisor_pid == child.pid
        assert supervisor_alive(header)
        child.kill()
        child.stdout.read()
        # Not reaped yet: a zombie does not answer for a run.
        while process_start_time(child.pid) is not None:
            pass
        assert not supervisor_alive(header)
        child.wait(10)
    assert not supervisor_alive(header)


@pytest.mark.parametrize("change", [adopt, give_to_engine])
def test_a_header_is_changed_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[RunPaths], RunHeader]
) -> None:
    paths = create_run("j", runs=tmp_path)
    locked = []

    def read(paths: RunPaths) -> RunHeader:
        directory = os.open(paths.root, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked.append(True)
        finally:
            os.close(directory)
        return read_header(paths)

    monkeypatch.setattr(store, "read_header", read)
    change(paths)
    assert locked == [True]


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    import msgspec

    header = adopt(create_run("j", runs=tmp_path))
    assert supervisor_alive(header)
    earlier = header.supervisor_start_time - 1
    assert not supervisor_alive(msgspec.structs.replace(header, supervisor_start_time=earlier))


def test_of_a_process_on_another_machine_nothing_is_known(tmp_path: Path) -> None:
    import msgspec

    header = adopt(create_run("j", runs=tmp_path))
    assert supervisor_alive(msgspec.structs.replace(header, supervisor_start_time=1.0, node="elsewhere"))


def test_a_job_name_means_its_newest_run(tmp_path: Path) -> None:
    old = create_run("digits", runs=tmp_path, created=1000.0)
    create_run("digits-2", runs=tmp_path, created=9000.0)
    newer = [create_run("digits", runs=tmp_path, created=2000.0 + part / 100) for part in range(5)]
    assert Run.open("digits", tmp_path).id == newer[-1].id
    assert Run.open(old.id, tmp_path).id == old.id
    assert list_runs(tmp_path)[0].id == old.id
    assert len(list_runs(tmp_path)) == 7


def test_the_base_name_of_an_estimators_jobs_means_the_newest_run_of_them(tmp_path: Path) -> None:
    create_run("nb-2026-11-22-14-10-35-475", runs=tmp_path, created=1000.0)
    made = create_run("nb-2026-11-22-14-10-36-001", runs=tmp_path, created=1000.5)
    assert Run.open("nb", tmp_path).id == made.id
    with pytest.raises(RunNotFound):
        Run.open("n", tmp_path)
    named = create_run("nb", runs=tmp_path)
    assert Run.open("nb", tmp_path).id == named.id, "a job that has just this name comes first"


def test_a_missing_run_is_answered_with_the_nearest_names(tmp_path: Path) -> None:
    create_run("digits-heterogeneous", runs=tmp_path)
    with pytest.raises(RunNotFound, match="no run 'digits-heterogenous'") as caught:
        Run.open("digits-heterogenous", tmp_path)
    assert "did you mean digits-heterogeneous" in caught.value.hint


STAMP = "-20261129-010203-abcd"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../runs", "a/b", f"../j{STAMP}", f".j{STAMP}", f"j\0{STAMP}", f"{'j' * 300}{STAMP}"]
)
def test_a_path_is_no_run(tmp_path: Path, name: str) -> None:
    runs = tmp_path / "runs"
    run = create_run("j", runs=runs)
    for copy in (tmp_path / f"j{STAMP}", runs / f".j{STAMP}"):
        shutil.copytree(run.root, copy)
    with pytest.raises(RunNotFound):
        Run.open(name, runs)


def test_without_any_run_the_hint_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound) as caught:
        Run.open("x", tmp_path / "never")
    assert "headrace run" in caught.value.hint
    assert list_runs(tmp_path / "never") == []


def test_the_runs_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    paths = create_run("j")
    assert paths.root.parent == tmp_path / "home" / "runs"
    assert Run.open("j").id == paths.id


def test_the_job_name_is_read_from_an_id_even_when_it_looks_like_one() -> None:
    assert job_name_of("a-20260101-000000-abcd-20270101-000000-ffff") == "a-20260101-000000-abcd"
    assert job_name_of("free") == "free"

"""Which records are this user's own: those that he has made here, whatever becomes of them; no copy of any kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import EngineRefused, HeadraceError
from headrace.hosting.inputs.requirements import environments_dir, make
from headrace.own_runs import MARK, enter_run, require_started_here, started_here
from headrace.runs import RunPaths, create_run
from stranger import as_stranger

Way = Callable[[RunPaths], RunPaths]


@pytest.fixture
def own(tmp_path: Path) -> RunPaths:
    return create_run("mine", runs=tmp_path / "home" / "runs")


def a_copy(run: RunPaths) -> RunPaths:
    return RunPaths(Path(shutil.copytree(run.root, run.root.with_name("copy"), symlinks=True)))


def a_copy_of_links(run: RunPaths) -> RunPaths:
    copy = run.root.with_name("copy")
    subprocess.run(["cp", "-al", run.root, copy], check=True)
    return RunPaths(copy)


def in_place_of_one_that_was_removed(run: RunPaths) -> RunPaths:
    aside = shutil.copytree(run.root, run.root.parents[2] / "aside")
    shutil.rmtree(run.root)
    shutil.copytree(aside, run.root)
    return run


def an_archive_that_links_to_an_own_mark(run: RunPaths) -> RunPaths:
    archive = run.root.parents[2] / "run.tar"
    with tarfile.open(archive, "w") as members:
        folder, link = tarfile.TarInfo("evil"), tarfile.TarInfo(f"evil/{MARK}")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o700
        link.type, link.linkname = tarfile.LNKTYPE, f"{run.id}/{MARK}"
        members.addfile(folder)
        members.addfile(link)
    subprocess.run(["tar", "xf", archive], cwd=run.root.parent, check=True)
    return RunPaths(run.root.with_name("evil"))


def with_a_link_to_an_own_mark(run: RunPaths) -> RunPaths:
    evil = run.root.with_name("evil")
    evil.mkdir()
    (evil / MARK).symlink_to(run.root / MARK)
    return RunPaths(evil)


def whose_mark_is(content: bytes | None) -> Way:
    def change(run: RunPaths) -> RunPaths:
        mark = run.root / MARK
        mark.unlink()
        if content is None:
            os.mkfifo(mark)
        else:
            mark.write_bytes(content)
        return run

    return change


def in_a_list_that_others_may_write(run: RunPaths) -> RunPaths:
    (run.root.parents[1] / f"started-{os.geteuid()}").chmod(0o777)
    return run


def without_a_list(run: RunPaths) -> RunPaths:
    shutil.rmtree(run.root.parents[1] / f"started-{os.geteuid()}")
    return run


FOREIGN = {
    "a copy": a_copy,
    "a copy of hard links": a_copy_of_links,
    "in the place of one that was removed": in_place_of_one_that_was_removed,
    "an archive's hard link to the mark of an own run": an_archive_that_links_to_an_own_mark,
    "a link to the mark of an own run": with_a_link_to_an_own_mark,
    "a mark that leads out of the list": whose_mark_is(b"../runs/x"),
    "an empty mark": whose_mark_is(b""),
    "a FIFO for a mark": whose_mark_is(None),
    "a list that others may write": in_a_list_that_others_may_write,
    "no list": without_a_list,
}


def renamed(run: RunPaths) -> RunPaths:
    return RunPaths(run.root.rename(run.root.with_name("another-name")))


def home_renamed(run: RunPaths) -> RunPaths:
    home = run.root.parents[1]
    return RunPaths(home.rename(home.with_name("new home")) / "runs" / run.id)


def home_moved_to_another_disk(run: RunPaths) -> RunPaths:
    home = run.root.parents[1]
    subprocess.run(["cp", "-a", home, home.with_name("new home")], check=True)
    shutil.rmtree(home)
    return RunPaths(home.with_name("new home") / "runs" / run.id)


def modes_changed(run: RunPaths) -> RunPaths:
    subprocess.run(["chmod", "-R", "go-rwx", run.root.parents[1]], check=True)
    return run


OWN = {
    "renamed": renamed,
    "its home renamed": home_renamed,
    "its home moved to another disk": home_moved_to_another_disk,
    "modes changed": modes_changed,
}


@pytest.mark.promise("runs", "a record from somebody else is read, and starts, sends, signals and removes nothing")
@pytest.mark.parametrize("way", FOREIGN.values(), ids=FOREIGN)
def test_a_record_that_was_not_made_here_is_somebody_else_s(own: RunPaths, way: Way) -> None:
    assert started_here(own.root)
    run = way(own)
    assert not started_here(run.root)
    with pytest.raises(EngineRefused, match="was not started here"):
        require_started_here(run.root, "nothing is done")


@pytest.mark.promise("runs", "runs that were started here stay so when they are renamed, or their home is moved")
@pytest.mark.parametrize("way", OWN.values(), ids=OWN)
def test_an_own_run_stays_one(own: RunPaths, way: Way) -> None:
    assert started_here(way(own).root)


def test_without_hard_links_an_own_run_is_one_and_a_copy_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    run = create_run("mine", runs=tmp_path / "home" / "runs")
    assert started_here(run.root)
    assert not started_here(a_copy(run).root)
    assert started_here(renamed(run).root)
    aside = shutil.copytree(run.root.with_name("another-name"), tmp_path / "aside")
    shutil.rmtree(run.root.with_name("another-name"))
    assert not started_here(Path(shutil.copytree(aside, run.root)))


@pytest.mark.parametrize("content", [b"", b"0123"], ids=["nothing", "a part"])
def test_a_mark_that_a_full_disk_or_a_kill_left_does_not_keep_a_grid_from_being_entered(
    tmp_path: Path, content: bytes
) -> None:
    grid = tmp_path / "home" / "grids" / "g1"
    grid.mkdir(parents=True)
    (grid / MARK).write_bytes(content)
    assert not started_here(grid)
    enter_run(grid)
    assert started_here(grid)


def test_a_run_is_made_in_no_list_that_others_may_write(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / f"started-{os.geteuid()}").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="closed to all others"):
        create_run("mine", runs=tmp_path / "home" / "runs")
    assert list((tmp_path / "home" / "runs").iterdir()) == []


def test_nobody_else_lists_the_names_of_runs_and_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "deep" / "home"))
    before = os.umask(0)
    try:
        create_run("mine")
        with (tmp_path / "log").open("wb") as log, pytest.raises((HeadraceError, OSError)):
            make(environments_dir() / "named", tmp_path / "none.txt", tmp_path, log, base=str(tmp_path / "no python"))
    finally:
        os.umask(before)
    home = tmp_path / "deep" / "home"
    assert [oct(path.stat().st_mode & 0o777) for path in (home, home / "runs", home / "environments")] == ["0o700"] * 3


@pytest.mark.promise("runs", "a record from somebody else is read, and starts, sends, signals and removes nothing")
@pytest.mark.needs("root")
def test_the_runs_of_another_user_in_one_home_are_foreign_and_his_list_is_his_own(public: Path) -> None:
    own = create_run("mine", runs=public / "home" / "runs")
    home = own.root.parents[1]
    for folder in (home, home / "runs", own.root):
        folder.chmod(0o777)
    (own.root / MARK).chmod(0o644)
    code = f"""
from pathlib import Path
from headrace.runs import RunPaths, create_run
from headrace.own_runs import started_here
runs = Path({str(home / "runs")!r})
print(started_here(runs / {own.id!r}), started_here(create_run("his", runs=runs).root))
"""
    done = subprocess.run(
        as_stranger("-c", code), capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": _SOURCE}
    )
    assert done.stdout.split() == ["False", "True"]
    assert started_here(own.root)
    [his] = [path for path in (home / "runs").iterdir() if path.name.startswith("his-")]
    assert not started_here(his)


_SOURCE = next(path for path in sys.path if (Path(path) / "headrace" / "runs").is_dir())

"""What headrace keeps in places that all users share is its user's alone: nobody gets it by being there first."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.child_python import read_report
from headrace.cli.main import invoke
from headrace.errors import UsageError
from headrace.home import home_dir
from headrace.hosting.isolation.network_layout import FILE, Instance, Layout
from headrace.hosting.supervision.cleanup import remove_scratch, scratch_dir, scratch_dirs, sweep_scratch
from headrace.private_folders import check_way, is_private, make_folders, open_private
from patience import until
from stranger import STRANGER

SOURCE = Path(headrace.__file__).parent
root = pytest.mark.needs("root")
Plant = Callable[[Path, Path], None]


@pytest.fixture
def shared(public: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as /tmp is: everybody may make something there."""
    folder = public / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def strangers_folder(place: Path, victim: Path) -> None:
    place.mkdir()
    place.chmod(0o777)
    os.chown(place, STRANGER, STRANGER)


def closed_folder(place: Path, victim: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, STRANGER, STRANGER)


def strangers_link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)
    os.chown(place, STRANGER, STRANGER, follow_symlinks=False)


def strangers_fifo(place: Path, victim: Path) -> None:
    os.mkfifo(place, 0o666)
    os.chown(place, STRANGER, STRANGER)


def open_folder(place: Path, victim: Path) -> None:
    place.mkdir()
    place.chmod(0o755)


PLANTS = (strangers_folder, closed_folder, strangers_link, strangers_fifo, open_folder)


@pytest.mark.promise("isolation", "what other users put into shared places is never taken for a run's own")
@root
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
@pytest.mark.promise("security", "what another user has planted in a shared folder is never used")
def test_what_another_user_has_planted_is_never_taken_for_ours(plant: Plant, shared: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"  # a closed folder of this user's, which a link would have us use, or remove
    victim.mkdir(mode=0o700)
    (victim / "kept").touch()
    digest = hashlib.sha256(b"run").hexdigest()
    places = [shared / f"headrace-{digest[:12]}", shared / f"headrace-{digest[:8]}-abcdefgh"]
    for place in places:
        plant(place, victim)
    folder = scratch_dir("run")
    assert is_private(folder)
    assert folder not in places
    assert scratch_dirs("run") == [folder], "what is not ours is not removed either"
    with pytest.raises(OSError):
        open_private(places[0])
    remove_scratch("run")
    sweep_scratch()
    assert [os.path.lexists(place) for place in places] == [True, True]
    assert (victim / "kept").exists()
    assert not folder.exists()


@pytest.mark.promise("isolation", "what other users put into shared places is never taken for a run's own")
@root
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_host_takes_its_layout_and_its_tmp_from_nobody_else(plant: Plant, shared: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    place = shared / "planted"
    plant(place, victim)
    tree = tmp_path / "tree"
    tree.mkdir()
    layout = Layout(False, False, False, "", (), ".", (Instance("algo-1", "", str(tree)),), own_network=False)
    layout.write((place if place.is_dir() else tmp_path) / FILE)  # with an order of the stranger's
    reading, writing = os.pipe()
    words = [sys.executable, "-S", "-m", "headrace.hosting.isolation.enter_namespaces", str(place), FILE, "algo-1"]
    ran = tmp_path / "ran"
    try:
        done = subprocess.run(
            [*words, str(writing), "-1", "-1", "-1", "--", "touch", str(ran)],
            pass_fds=[writing], env={"PYTHONPATH": str(SOURCE.parent)}, timeout=30, check=False,
        )  # fmt: skip
        os.close(writing)
        report = read_report(os.read(reading, 4096).decode())
    finally:
        os.close(reading)
    assert done.returncode == 1
    assert report is not None
    assert re.search("must belong to user 0 and be closed|Not a directory|Too many levels", report.error), report.error
    assert not ran.exists()
    assert list(tree.iterdir()) == []


def test_a_folder_that_is_held_outlives_a_sweep_and_one_of_a_killed_process_does_not(shared: Path) -> None:
    program = (
        "import os, tempfile; from headrace.hosting.supervision.cleanup import scratch_dir\n"
        f"tempfile.tempdir = {str(shared)!r}; print(scratch_dir('killed'), flush=True); os.read(0, 1)"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdin is not None
    with other.stdout, other.stdin:
        theirs, ours = Path(other.stdout.readline().strip()), scratch_dir("ours")
        sweep_scratch()
        assert (theirs.is_dir(), ours.is_dir()) == (True, True)
        other.kill()
        other.wait()
    sweep_scratch()
    assert (theirs.is_dir(), ours.is_dir()) == (False, True)
    remove_scratch("ours")


def test_a_trial_of_isolation_that_was_killed_leaves_nothing_once_the_next_one_has_run(
    shared: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "runs").mkdir(parents=True)
    program = (
        f"import tempfile; tempfile.tempdir = {str(shared)!r}; from headrace.hosting.isolation import probing\n"
        "probing._try(user_namespace=False, own_network=False)"
    )

    def folders() -> list[Path]:
        return [*shared.glob("headrace-*"), *(home / "runs").glob(".headrace-*")]

    def trial() -> subprocess.Popen[bytes]:
        env = {**os.environ, "HEADRACE_HOME": str(home)}
        return subprocess.Popen([sys.executable, "-c", program], env=env, start_new_session=True)

    killed = trial()
    until(lambda: len(folders()) == 2)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(folders()) == 2
    closed = folders()[1] / "work"  # as the kernel leaves that of an overlay
    closed.mkdir(exist_ok=True)
    closed.chmod(0)
    assert trial().wait(60) == 0
    assert folders() == []


@pytest.mark.promise("security", "runs, temporary files, stores and buckets are closed to other users")
def test_all_folders_that_are_made_are_closed_not_only_the_last(tmp_path: Path) -> None:
    make_folders(tmp_path / "one" / "two" / "three")
    modes = [(tmp_path / place).stat().st_mode & 0o777 for place in ("one", "one/two", "one/two/three")]
    assert modes == [0o700] * 3


@root
@pytest.mark.parametrize("plant", [strangers_folder, strangers_link], ids=lambda plant: plant.__name__)
@pytest.mark.promise("security", "what another user has planted in a shared folder is never used")
def test_a_home_that_another_user_has_planted_is_refused(
    plant: Plant, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(shared / "home", tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(shared / "home" / "deep"))
    with pytest.raises(UsageError, match=rf"home was made by user {STRANGER}, in a folder where everybody may write"):
        home_dir()
    with pytest.raises(PermissionError):
        make_folders(shared / "home" / "store")
    check_way(shared / "own")  # nothing is there yet


# One way for all: a call that is not here makes something in a place that everybody shares without a look at it.
OWN = "private_folders.py"
SUSPECT = re.compile(r"\b(mkdtemp|mkstemp|mktemp|gettempdir|makedirs|parents=True)\b|[\"']/(tmp|var/tmp|dev/shm)/\w")
SHARED_NAMES = re.compile(r"^/(tmp|var/tmp|dev/shm)/\w")
ELSEWHERE = {  # where such a name stands, and why it is nobody else's
    "hosting/isolation/network.py": "in a mount namespace of its own, on a tmpfs",
    "grid/batch/batch_requests.py": "in an image that is being built",
    "cloud/image_files.py": "in an image that is being built",
}


def other_ways(name: str, text: str) -> list[str]:
    """Returns the calls and names in a module that use a shared place without `private_folders`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            keywords = {keyword.arg for keyword in node.keywords}
            unnamed = function in {"mkdtemp", "mkstemp"} and "dir" not in keywords
            last_only = {"mode", "parents"} <= keywords or function == "makedirs"  # the mode is the last folder's
            if unnamed or last_only or function in {"gettempdir", "mktemp"}:
                found.append(f"{name}:{node.lineno}: {function}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and SHARED_NAMES.match(node.value):
            found.append(f"{name}:{node.lineno}: {node.value[:40]}")
    return found


@pytest.mark.promise("isolation", "what other users put into shared places is never taken for a run's own")
def test_places_that_all_users_share_are_used_in_one_way() -> None:
    other: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        name, text = path.relative_to(SOURCE).as_posix(), path.read_text()
        if name != OWN and name not in ELSEWHERE and SUSPECT.search(text):
            other += other_ways(name, text)
    assert other == [], "use headrace.private_folders"


@pytest.mark.parametrize(
    "line",
    [
        'tempfile.mkdtemp(prefix="x")', 'Path(tempfile.gettempdir()) / "x"', "tempfile.mktemp()",
        'Path("a").mkdir(mode=0o700, parents=True)', 'os.makedirs("a", mode=0o700)', 'Path("/tmp/headrace").mkdir()',
    ],
)  # fmt: skip
def test_another_way_is_found(line: str) -> None:
    assert SUSPECT.search(line)
    assert len(other_ways("x.py", line)) == 1


@pytest.mark.parametrize(
    "arguments", [["ps"], ["run", "job.yaml"], ["logs", "a"], ["serve"], ["grid", "status", "g"], ["prices"]]
)
@pytest.mark.parametrize("kind", ["file", "below a file", "closed"])
def test_a_home_that_is_no_folder_that_one_may_enter_is_an_error_with_a_hint_in_every_command(
    kind: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    if kind == "closed":
        home.mkdir(mode=0)
        if os.access(home, os.X_OK):
            return  # root enters every folder; the ordinary user of the bare leg does not
    else:
        home.touch()
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("entry_point: train.py\ninstance_type: ml.m5.large\ninstance_count: 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(home / "deep" if kind == "below a file" else home))
    assert invoke(arguments) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith(f"error: headrace keeps nothing in {home}")
    assert hint == "hint: set HEADRACE_HOME to a folder that you may write to"

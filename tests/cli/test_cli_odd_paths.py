"""A look at a path that nobody may look at: another user's, a circle of links, a name that is too long.

Such paths come with a shell's variables (`su` leaves those of root), with sys.path, and with what a job names. What is
only looked at never stops a run, and what the user names is refused as a mistake of his, with the reason. The tests run
as somebody who is not root, for whom there are forbidden paths.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import SOAK

from stranger import STRANGER, UNKNOWN, as_stranger

SOURCE = Path(__file__).parents[2] / "src"
ODD = ("forbidden", "forbidden file", "long name", "long path", "circle", "below a file", "gone", "bytes")
WORDS = {
    "forbidden": "Permission denied",
    "forbidden file": "Permission denied",
    "long name": "File name too long",
    "long path": "File name too long",
    "circle": "Too many levels of symbolic links",
}
# Every place that only looks at a path of the environment: one Python, as it is for somebody who is not root.
LOOKS = """
import json, os, pathlib, sys
from headrace.engines.kubernetes.kube_login import kubeconfig_files
from headrace.errors import HeadraceError
from headrace.feed.pipelines.factory import load_function
from headrace.feed.wire.endpoints import Endpoints
from headrace.hosting.isolation.network_layout import shown_below_tmp
from headrace.hosting.isolation.probing import examine
from headrace.runs import runs_dir
import headrace.feed.sources.index_shards as index_shards

def kubeconfig(path):
    os.environ["KUBECONFIG"] = path
    return [str(file) for file in kubeconfig_files()]

def remote_workers(path):
    return Endpoints(path.lstrip("/"))

def function(path):
    sys.path.append(path)
    try:
        return load_function("torch_like:collate", [pathlib.Path(path), pathlib.Path(path.lstrip("/"))])
    finally:
        sys.path.remove(path)

def home(path):
    os.environ["HEADRACE_HOME"] = path
    examine.cache_clear()
    return examine()

def cache(path):
    os.environ["XDG_CACHE_HOME"] = path
    return index_shards._cache(pathlib.Path(path))

def below_tmp(path):
    shown = shown_below_tmp([path, f"{path}/deeper"])
    return [place for place in shown if not os.path.exists(place)]

answers = {}
for kind, path in json.load(sys.stdin).items():
    path = os.fsdecode(path.encode("latin-1"))
    for look in (below_tmp, kubeconfig, remote_workers, function, cache, home):
        try:
            answers[f"{look.__name__} of {kind}"] = repr(look(path))
        except HeadraceError as error:
            answers[f"{look.__name__} of {kind}"] = f"refused: {error}"
        except BaseException as error:
            answers[f"{look.__name__} of {kind}"] = f"RAISED {type(error).__name__}: {error}"
print(json.dumps(answers))
"""


class Place:
    """A folder of somebody who is not root, with paths of every odd kind beside it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.bin = folder / "home", folder / "bin"
        secret = folder / "secret"
        for made in (self.home, self.bin, secret, secret / "folder", self.home / "code"):
            made.mkdir()
        (secret / "file").touch()
        (folder / "circle").symlink_to("circle")
        (self.home / "code" / "train.py").write_text("print('trained')")
        (self.home / "code" / "circle").symlink_to("circle")
        (self.home / "code" / "forbidden").symlink_to(secret / "folder")
        self.odd = {
            "forbidden": str(secret / "folder"),
            "forbidden file": str(secret / "file"),
            "long name": f"{folder}/{'n' * 300}",
            "long path": f"{folder}{'/n' * 2500}",
            "circle": str(folder / "circle" / "x"),
            "below a file": "/etc/passwd/x",
            "gone": str(folder / "gone" / "x"),
            "bytes": f"{folder}/\udcff",
        }
        assert tuple(self.odd) == ODD
        if os.geteuid() == 0:
            for path in (self.home, self.home / "code"):
                os.chown(path, STRANGER, STRANGER)
        secret.chmod(0)

    def variables(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": str(SOURCE), **more}

    def python(
        self, *arguments: str, given: str = "", user: int = STRANGER, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            as_stranger(*arguments, user=user), cwd=self.home, env=self.variables(**variables), input=given,
            capture_output=True, text=True, errors="backslashreplace", timeout=120, check=False,
        )  # fmt: skip

    def job(self, **fields: object) -> str:
        job = {"job_name": "odd", "source_dir": "code", "entry_point": "train.py", "instance_type": "ml.c5.xlarge",
               "instance_count": 1, **fields}  # fmt: skip
        (self.home / "job.yaml").write_text(json.dumps({name: value for name, value in job.items() if value}))
        return "job.yaml"


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="headrace-test-", dir="/tmp") as name:  # what isolation shows lies there
        Path(name).chmod(0o755)
        yield Place(Path(name))
        (Path(name) / "secret").chmod(0o700)


in_namespaces = pytest.param("namespace", marks=[pytest.mark.namespaces, pytest.mark.needs("namespaces")])


@pytest.mark.parametrize("isolation", [in_namespaces, *(["none"] if SOAK else [])])
def test_a_job_runs_whatever_paths_the_variables_of_the_shell_name(place: Place, isolation: str) -> None:
    odd = list(place.odd.values())
    several = os.pathsep.join(odd)
    variables = {f"ODD_{number}": path for number, path in enumerate(odd)}
    done = place.python(
        "-m", "headrace.cli", "run", place.job(engines={"local": {"isolation": isolation, "stop_grace": 5}}),
        SEVERAL=several, PYTHONPATH=f"{SOURCE}:{several}", PATH=f"{os.environ['PATH']}:{several}",
        VIRTUAL_ENV=odd[0], KUBECONFIG=several, XDG_CACHE_HOME=odd[0], SSL_CERT_FILE=odd[1], AWS_CONFIG_FILE=odd[1],
        PYTHONSTARTUP=odd[1], OLDPWD=odd[0], **variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert "trained" in done.stdout + done.stderr
    assert "links to what this user may not look at are copied as links: forbidden\n" in done.stderr


def test_no_look_at_a_path_of_the_environment_raises(place: Place) -> None:
    odd = {kind: os.fsencode(path).decode("latin-1") for kind, path in place.odd.items()}
    (place.home / "torch_like.py").write_text("def collate(rows): return rows")
    done = place.python("-c", LOOKS, given=json.dumps(odd), PYTHONPATH=f"{SOURCE}:{place.home}")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == 6 * len(ODD)
    raised = [f"{look}: {answer}" for look, answer in answers.items() if answer.startswith("RAISED")]
    assert not raised, "\n".join(raised)
    for kind in ODD:
        assert answers[f"below_tmp of {kind}"] == "[]", "what is not there is shown to nobody"
        assert "is neither a list of addresses nor a file" in answers[f"remote_workers of {kind}"]
    assert "cannot be read: Permission denied" in answers["kubeconfig of forbidden"]
    assert answers["kubeconfig of gone"] == "[]"


def test_a_path_of_a_job_that_cannot_be_looked_at_is_refused_with_its_field_and_the_reason(place: Place) -> None:
    program = """
import sys, json
from headrace.errors import JobInvalid
from headrace.job import load_job
answers = {}
for file in json.load(sys.stdin):
    try:
        load_job(file).check_files()
    except JobInvalid as error:
        answers[file] = [(problem.field, problem.message) for problem in error.problems]
print(json.dumps(answers))
"""
    files = {}
    for kind, path in place.odd.items():
        for name, fields in {
            "source_dir": {"source_dir": path},
            "entry_point": {"source_dir": None, "entry_point": f"{path}.py"},
            "dependencies": {"dependencies": [path]},
            "inputs.training": {"inputs": {"training": path}},
            "inputs.training.s3_data": {"inputs": {"training": {"s3_data": path, "s3_data_type": "ManifestFile"}}},
        }.items():
            if kind != "bytes":  # a job file is text
                file = f"{kind.replace(' ', '-')}.{name}.yaml"
                files[file] = (name, kind)
                Path(place.home / place.job(**fields)).rename(place.home / file)
    done = place.python("-c", program, given=json.dumps(list(files)))
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for file, (name, kind) in files.items():
        [(field, message)] = answers[file]
        assert field.startswith(name), message
        expected = WORDS.get(kind, "does not exist")
        assert (f"cannot be looked at: {expected}" if kind in WORDS else expected) in message


@pytest.mark.parametrize(("command", "kind"), [("run", "forbidden"), *([("plan", "circle")] if SOAK else [])])
def test_the_command_calls_a_path_that_may_not_be_looked_at_a_mistake_of_the_user(
    place: Place, command: str, kind: str
) -> None:
    done = place.python("-m", "headrace.cli", command, place.job(inputs={"training": place.odd[kind]}))
    assert done.returncode == 2, done.stderr
    assert WORDS[kind] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.needs("root")  # who can be a user that /etc/passwd does not know
def test_a_user_without_a_home_is_told_to_name_one(place: Place) -> None:
    program = "import os, sys; os.environ.pop('HOME'); from headrace.cli.main import main; main()"
    for command in (["ps"], *([["prices"]] if SOAK else [])):
        done = place.python("-c", program, *command, user=UNKNOWN)
        assert done.returncode == 2, done.stderr + done.stdout
        assert f"HOME is not set, and /etc/passwd does not know user {UNKNOWN}" in done.stderr
        assert "hint: set HEADRACE_HOME" in done.stderr
    done = place.python("-c", program, "ps", user=UNKNOWN, HEADRACE_HOME=str(place.home / "kept"))
    assert done.returncode == 0, done.stderr


def test_data_that_the_user_may_not_read_are_told_before_anything_starts(place: Place) -> None:
    data = place.home / "data"
    (data / "more").mkdir(parents=True)
    (data / "lost+found").mkdir()
    for name in ("a", "more/b"):
        (data / name).touch()
    (data / "dangling").symlink_to("nothing")
    (data / "lost+found").chmod(0)
    try:
        for mode, closed in ((0o644, ""), (0, "more/b")):
            (data / "more" / "b").chmod(mode)
            done = place.python("-m", "headrace", "plan", place.job(inputs={"training": "data"}))
            told = f"must be data that you may read; {data / closed} is closed to you" in done.stderr
            assert (told, done.returncode) == (bool(closed), 2 if closed else 0), done.stderr
        data.chmod(0o311)
        done = place.python("-m", "headrace", "plan", place.job(inputs={"training": "data"}))
        assert f"must be data that you may read; {data} is closed to you" in done.stderr
    finally:
        data.chmod(0o755)
        (data / "lost+found").chmod(0o755)

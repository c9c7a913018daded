"""Every kind of entry point is started with every argument byte for byte, and with what its group has of its own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from effort import SOAK
from stage import groups, text

from headrace import engines
from headrace.job import Job
from headrace.runs import Status

INJECTED = Path(tempfile.gettempdir(), f"headrace-injected-{os.getpid()}")
WILD = {
    "quotes": 'it\'s "so" `id` \\ ',
    "newline": "a\nb\n",
    "command": f"$(touch {INJECTED}) ; rm -rf x | y & z > w * ? [a] {{b,c}} ~ ! # %",
    "unicode": "größe 日本 🙂 \u202e",
    "empty": "",
    "hyphen": "--help",
    "nothing": None,
    "flag": True,
    "list": [1, "a b"],
    "k": 5,
    "with-hyphen": " ",
}
EXPECTED = [
    *("--command", WILD["command"], "--empty", "", "--flag", "True", "--hyphen", "--help", "-k", "5"),
    *("--list", "[1, 'a b']", "--newline", "a\nb\n", "--nothing", "", "--quotes", WILD["quotes"]),
    *("--unicode", WILD["unicode"], "--with-hyphen", " "),
]

SHOW = """\
import json, os, pathlib, sys
here = {"argv": sys.argv[1:], "cwd": os.getcwd(), "path": sys.path[:3], "name": __name__, "env": dict(os.environ)}
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "seen.json").write_text(json.dumps(here))
"""
SHELL = """\
set -eu
printf '%s\\0' "$@" > "$SM_OUTPUT_DATA_DIR/arguments"
pwd > "$SM_OUTPUT_DATA_DIR/cwd"
python -c 'import sys; print(sys.executable); print(sys.path)' > "$SM_OUTPUT_DATA_DIR/python"
"""


def run(stage, source: Path, name: str = "job", **fields: object):
    if "instance_groups" not in fields:
        fields = {"instance_type": "ml.c5.xlarge", "instance_count": 1, **fields}
    local = {"address_prefix": stage.prefix, "stop_grace": 3, "isolation": "none"}
    job = Job(name, source_dir=str(source), engines={"local": local}, **fields)
    handle = engines.start(job)
    stage.handles.append(handle)
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle, within=2.0)
    return handle


def output(handle, host: str = "algo-1") -> Path:
    return handle.paths.host(host) / "output" / "data"


@pytest.mark.promise("entry-points", "hyperparameters arrive as they are, and no shell sees them")
@pytest.mark.parametrize(
    ("file", "entry_point"),
    [
        ("train.py", "train.py"),
        ("pkg/task.py", "-m pkg.task"),
        ("trainer/__main__.py", "trainer"),
        *([("sub/train.py", "sub/train.py"), ("src/trainer/__main__.py", "trainer")] if SOAK else []),
    ],
)
def test_python_entry_points_get_the_hyperparameters_byte_for_byte(stage, tmp_path, file: str, entry_point: str):
    source = tmp_path / "src-of-job"
    (source / file).parent.mkdir(parents=True)
    (source / file).write_text(SHOW)
    if file.startswith("src/"):
        (source / "pyproject.toml").write_text("[project]\nname='trainer'\nversion='1'\n")
    handle = run(stage, source, entry_point=entry_point, hyperparameters=WILD)
    seen = json.loads((output(handle) / "seen.json").read_text())
    assert seen["argv"] == EXPECTED
    assert seen["name"] == "__main__"
    assert Path(seen["cwd"]).samefile(handle.paths.host("algo-1") / "code")
    assert seen["env"]["SM_USER_ENTRY_POINT"] == entry_point
    assert seen["env"]["SM_HP_COMMAND"] == WILD["command"]
    assert not INJECTED.exists()


@pytest.mark.parametrize("entry_point", ["train.sh", "bin/run"])
@pytest.mark.promise("sagemaker-differences", "absent here: scripts run through a shell, after `chmod 777`")
@pytest.mark.promise("sagemaker-differences", "absent here: `.sh` entries get no arguments")
def test_shell_scripts_and_programs_get_them_too_and_find_the_python_of_the_job(stage, tmp_path, entry_point: str):
    source = tmp_path / "src-of-job"
    path = source / entry_point
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/bash\n{SHELL}")  # without the execute bit, as in an archive made elsewhere
    handle = run(stage, source, entry_point=entry_point, hyperparameters=WILD)
    received = (output(handle) / "arguments").read_bytes().split(b"\0")[:-1]
    assert [each.decode() for each in received] == EXPECTED
    assert Path((output(handle) / "cwd").read_text().strip()).samefile(handle.paths.host("algo-1") / "code")
    interpreter, below = (output(handle) / "python").read_text().splitlines()
    assert Path(interpreter).parents[1].name == ".python-algo-1"  # the host's own, on top of the Python of the job
    assert sys.prefix in below
    assert not INJECTED.exists()


def test_a_command_is_run_as_it_is_and_gets_no_hyperparameters(stage, tmp_path):
    source = tmp_path / "src-of-job"
    source.mkdir()
    (source / "show.py").write_text(SHOW)
    handle = run(
        stage, source, command=["python", "show.py", "--word", "a b; $(id)", ""], hyperparameters={"epochs": 3}
    )
    seen = json.loads((output(handle) / "seen.json").read_text())
    assert seen["argv"] == ["--word", "a b; $(id)", ""]
    assert seen["env"]["SM_HP_EPOCHS"] == "3"


def test_every_group_may_have_its_own_program_variables_and_hyperparameters(stage, tmp_path):
    source = tmp_path / "src-of-job"
    source.mkdir()
    (source / "train.py").write_text(SHOW)
    (source / "data.sh").write_text('python show.py "$@"')
    (source / "show.py").write_text(SHOW)
    data, dnn = groups(data=1, dnn=2)
    data |= {"entry_point": "data.sh", "environment": {"ROLE": "data", "ONLY": "1"}, "hyperparameters": {"workers": 2}}
    dnn |= {"hyperparameters": {"epochs": 9}}
    handle = run(
        stage,
        source,
        entry_point="train.py",
        instance_groups=[data, dnn],
        environment={"ROLE": "any", "ALL": "1"},
        hyperparameters={"epochs": 3, "seed": 1},
    )
    seen = {host: json.loads((output(handle, host) / "seen.json").read_text()) for host in ("algo-1", "algo-2")}
    assert seen["algo-1"]["argv"] == ["--epochs", "3", "--seed", "1", "--workers", "2"]
    assert seen["algo-2"]["argv"] == ["--epochs", "9", "--seed", "1"]
    one, two = seen["algo-1"]["env"], seen["algo-2"]["env"]
    assert (one["ROLE"], one["ALL"], one["ONLY"], one["SM_USER_ENTRY_POINT"]) == ("data", "1", "1", "data.sh")
    assert (two["ROLE"], two["ALL"], two["SM_USER_ENTRY_POINT"]) == ("any", "1", "train.py")
    assert "ONLY" not in two
    assert json.loads(one["SM_TRAINING_ENV"])["hyperparameters"] == {"epochs": 3, "seed": 1, "workers": 2}
    config = handle.paths.host("algo-1") / "input" / "config" / "hyperparameters.json"
    assert json.loads(config.read_text())["sagemaker_program"] == '"data.sh"'


def test_a_program_that_cannot_be_executed_is_named(stage, tmp_path):
    source = tmp_path / "src-of-job"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "run").write_text("#!/no/such/interpreter\n")
    local = {"address_prefix": stage.prefix, "isolation": "none"}
    fields = {"instance_type": "ml.c5.xlarge", "instance_count": 1, "engines": {"local": local}}
    handle = engines.start(Job("job", source_dir=str(source), entry_point="bin/run", **fields))
    stage.handles.append(handle)
    assert handle.wait(30) is Status.FAILED
    assert (handle.cause.host, handle.cause.exit_code) == ("algo-1", 127)
    assert any("./bin/run" in line and "No such file" in line for line in handle.cause.last_lines)

"""headrace as users install it, in an environment of its own: a program sees its own Python, requirements and code."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from wheels import wheel

import headrace
from headrace.hosting.isolation.needed_paths import environment_of

LAUNCHERS = ("click", "pydantic", "numpy", "grpc", "msgspec", "yaml")
OTHER_PYTHONS = ("python3.10", "python3.12", "python3.13")
PROGRAM = """
import importlib.metadata, importlib.util, json, os, sys
import headrace
from headrace.errors import HeadraceError
found = {{
    "there": [name for name in {names} if importlib.util.find_spec(name)],
    "version": "%d.%d" % sys.version_info[:2],
    "prefix": sys.prefix,
    "headrace": headrace.__file__,
    "click": importlib.metadata.version("click") if importlib.util.find_spec("click") else "",
}}
with open(os.path.join(os.environ["SM_MODEL_DIR"], "found.json"), "w") as file:
    json.dump(found, file)
"""


def environment(folder: Path, python: str = sys.executable) -> Path:
    """Makes a virtual environment without packages. Returns its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    return folder / "bin" / "python"


def packages_of(python: Path) -> Path:
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    return Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())


class Installed:
    """An environment in which headrace lies as pip puts it there, beside packages that it uses, and a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = environment(folder / "launcher")
        packages = packages_of(self.python)
        shutil.copytree(
            Path(headrace.__file__).parent, packages / "headrace", ignore=shutil.ignore_patterns("__pycache__")
        )
        # What it depends on: links to what this environment has, so that they lie in site-packages too.
        for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if entry.suffix != ".pth" and entry.name != "headrace":
                (packages / entry.name).symlink_to(entry)
        (folder / "job").mkdir()
        (folder / "job" / "train.py").write_text(PROGRAM.format(names=LAUNCHERS))

    def run(self, **fields: object) -> dict[str, object]:
        """Runs the job, and returns what its program found."""
        document = {
            "job_name": "found", "source_dir": "job", "entry_point": "train.py", "output_path": "out",
            "instance_type": "ml.m5.large", "instance_count": 1, **fields,
        }  # fmt: skip
        (self.folder / "job.json").write_text(json.dumps(document))
        done = subprocess.run(
            [str(self.python), "-m", "headrace", "run", "job.json"],
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "HEADRACE_HOME": f"{self.folder}/home"},
            cwd=self.folder, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        archive = self.folder / "out" / "found" / "output" / "model.tar.gz"
        shutil.unpack_archive(archive, self.folder / "model")
        found: dict[str, object] = json.loads((self.folder / "model" / "found.json").read_text())
        return found


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_a_mapped_python_sees_its_own_packages_and_headrace_alone(installed: Installed) -> None:
    own = str(Path(installed.python).parents[1] / "lib")
    for name in (sys.executable, *(each for each in map(shutil.which, OTHER_PYTHONS) if each)):
        if subprocess.run([name, "-c", "import venv"], capture_output=True, check=False).returncode:
            continue  # a version manager's command that leads to no Python
        mapped = environment(installed.folder / "mapped" / Path(name).name, name)
        found = installed.run(engines={"local": {"python": str(mapped)}})
        assert found["there"] == []
        assert found["prefix"] == str(mapped.parents[1])
        assert str(found["headrace"]).startswith(own)


def test_a_requirement_is_what_the_program_imports_whatever_headrace_itself_uses(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    index = installed.folder / "index"
    index.mkdir()
    wheel(index, "click", "0.0.7")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    (installed.folder / "job" / "requirements.txt").write_text("click==0.0.7\n")
    assert importlib.metadata.version("click") != "0.0.7"
    assert installed.run(requirements="requirements.txt")["click"] == "0.0.7"


def test_all_of_an_environment_is_shown_whatever_leads_to_it(tmp_path: Path) -> None:
    base = tmp_path / "versions" / "3.11.7"
    (base / "bin").mkdir(parents=True)
    (base / "lib" / "python3.11").mkdir(parents=True)
    (base / "lib" / "python3.11" / "os.py").touch()
    (base / "bin" / "python3.11").touch()
    (base / "bin" / "python").symlink_to("python3.11")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\ninclude-system-site-packages = false\n")
    (venv / "bin" / "python").symlink_to(base / "bin" / "python")
    conda = tmp_path / "conda"
    (conda / "conda-meta").mkdir(parents=True)
    (conda / "bin").mkdir()
    (conda / "bin" / "python").touch()
    links = tmp_path / "links"
    links.mkdir()
    (links / "current").symlink_to(venv)
    (links / "python").symlink_to(links / "current" / "bin" / "python")
    (links / "circle").symlink_to("circle")
    assert {str(base), str(venv)} <= set(environment_of(str(venv / "bin" / "python")))
    assert {str(base), str(venv), str(links / "current")} <= set(environment_of(str(links / "python")))
    assert str(conda) in environment_of(str(conda / "bin" / "python"))
    assert str(tmp_path) not in environment_of(str(links / "python")), "no folder that is no environment"
    assert list(environment_of(str(links / "circle"))) == [str(links / "circle")]

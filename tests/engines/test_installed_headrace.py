"""headrace as users install it, in an environment of its own: a program sees its own Python, requirements and code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

import pytest
from effort import SOAK
from wheels import wheel

from headrace.cloud.image_files import own_wheel
from headrace.hosting.isolation.needed_paths import environment_of

LAUNCHERS = ("click", "pydantic", "numpy", "msgspec", "yaml")
PROGRAM = """
import importlib.metadata, importlib.util, json, os, subprocess, sys
import headrace
from headrace.errors import HeadraceError
{before}
found = {{
    "there": [name for name in {names} if importlib.util.find_spec(name)],
    "version": "%d.%d" % sys.version_info[:2],
    "base": sys.base_prefix,
    "headrace": headrace.__file__,
    "versions": {{d.metadata["Name"]: d.version for d in reversed(list(importlib.metadata.distributions()))}},
    "seen": globals().get("seen"),
}}
with open(os.path.join(os.environ["SM_MODEL_DIR"], "found.json"), "w") as file:
    json.dump(found, file)
"""
# What a program installs, replaces and removes: by the interpreter and by PATH.
INSTALLS = """
def pip(*words):
    subprocess.run([*words], check=True)
pip(sys.executable, "-m", "pip", "install", "--quiet", "beta==2.0", "gamma")
pip("pip", "uninstall", "--yes", "epsilon")
importlib.invalidate_caches()
import beta, gamma
seen = [subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip() for words in (
    ["gamma-say"], ["beta-say"], ["python", "-c", "import alpha, beta, gamma, epsilon; print(alpha.version)"],
)]
"""
FROM_THE_SHELL = "pip3 install --quiet -r sdk.txt && exec python train.py"


def environment(folder: Path, python: str = sys.executable) -> Path:
    """Makes a virtual environment without packages. Returns its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    return folder / "bin" / "python"


def packages_of(python: Path) -> Path:
    return next((python.parents[1] / "lib").glob("python*/site-packages"))


def other_pythons() -> list[Path]:
    """The Pythons of other versions beside this one, as a version manager has them; the oldest first."""
    beside = sorted(Path(sys.base_prefix).parent.glob("3.1[0-9].*/bin/python3.1[0-9]"))
    return [path for path in beside if path.parents[1] != Path(sys.base_prefix)]


PYTHONS = [*map(str, other_pythons()), sys.executable]


def state_of(folder: Path) -> dict[str, str]:
    """The content of all files, or where a link leads, but for what Python compiles for itself."""
    files = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {
        str(path): str(path.readlink()) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_symlink() or path.is_file()
    }


class Installed:
    """An environment in which the wheel of headrace is installed beside what it depends on, and a folder of wheels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "index"
        self.python = environment(folder / "launcher")
        packages = packages_of(self.python)
        name, content = own_wheel()
        (folder / name).write_bytes(content)
        with zipfile.ZipFile(folder / name) as archive:
            archive.extractall(packages)
        # What it depends on: links to what this environment has, so that they lie in site-packages too.
        for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if entry.suffix != ".pth" and not entry.name.startswith("headrace"):
                (packages / entry.name).symlink_to(entry)
        for package in ("alpha", "gamma", "click"):
            wheel(self.index, package, "0.0.7" if package == "click" else "1.0", script=True)
        wheel(self.index, "beta", "2.0")

    def own_packages(self, python: Path) -> Path:
        """Puts two packages, one with a command, and the pip of its Python into an environment. Returns its folder."""
        for package in ("beta", "epsilon"):
            with zipfile.ZipFile(wheel(self.folder / "own", package)) as archive:
                archive.extractall(packages_of(python))
        command = python.with_name("beta-say")
        command.write_text(f"#!{python}\nfrom beta import main\nmain()\n")
        command.chmod(0o755)
        asked = "import pip; print(pip.__path__[0])"
        base = subprocess.run([python.resolve(), "-c", asked], check=True, capture_output=True, text=True)
        (packages_of(python) / "pip").symlink_to(base.stdout.strip())
        return python.parents[1]

    def run(self, before: str = "", files: dict[str, str] | None = None, **fields: object) -> dict[str, object]:
        """Runs a job, and returns what its program found."""
        job = Path(tempfile.mkdtemp(prefix="job-", dir=self.folder))
        (job / "code").mkdir()
        for name, content in {"train.py": PROGRAM.format(names=LAUNCHERS, before=before), **(files or {})}.items():
            (job / "code" / name).write_text(content)
        document = {
            "job_name": "found", "source_dir": "code", "output_path": "out",
            "instance_type": "ml.m5.large", "instance_count": 1,
            **({} if "command" in fields else {"entry_point": "train.py"}), **fields,
        }  # fmt: skip
        (job / "job.json").write_text(json.dumps(document))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        pip = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(self.index)}
        pip["PIP_REQUIRE_VIRTUALENV"] = "1"  # a fault must not reach the Python of this machine
        done = subprocess.run(
            [str(self.python), "-m", "headrace", "run", "job.json"],
            env={**inherited, **pip, "HEADRACE_HOME": f"{job}/home", "HOME": f"{self.folder}/of the user"},
            cwd=job, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.unpack_archive(job / "out" / "found" / "output" / "model.tar.gz", job / "model")
        found: dict[str, object] = json.loads((job / "model" / "found.json").read_text())
        return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.mark.promise("packages", "a job changes no Python of the machine; later processes have what it installs")
@pytest.mark.parametrize("python", PYTHONS if SOAK else PYTHONS[:1])
@pytest.mark.parametrize("isolation", ["auto", "none"] if SOAK else ["none"])
def test_a_job_on_a_mapped_python_sees_and_may_change_all_packages_and_the_python_stays_as_it_is(
    installed: Installed, tmp_path: Path, python: str, isolation: str
) -> None:
    mapped = environment(tmp_path / "mapped", python)
    folder = installed.own_packages(mapped)
    before = state_of(folder), state_of(installed.python.parents[1])
    own = str(installed.python.parents[1] / "lib")
    local = {"python": str(mapped), "isolation": isolation}
    shell = {"command": ["/bin/sh", "-c", FROM_THE_SHELL], "engines": {"local": local}}
    found = installed.run(INSTALLS, {"sdk.txt": "alpha\n"}, **shell)
    assert found["there"] == []
    assert found["base"] == str(Path(python).resolve().parents[1])
    assert str(found["headrace"]).startswith(own)
    versions = found["versions"]
    assert isinstance(versions, dict)
    wanted = {"alpha": "1.0", "beta": "2.0", "gamma": "1.0", "epsilon": "1.0"}
    assert {name: versions.get(name) for name in wanted} == wanted
    assert found["seen"] == ["gamma 1.0", "beta 2.0", "1.0"]
    assert (state_of(folder), state_of(installed.python.parents[1])) == before
    assert not (installed.folder / "of the user" / ".local").exists()


def test_a_requirement_is_what_the_program_imports_whatever_headrace_itself_uses(installed: Installed) -> None:
    before = state_of(installed.python.parents[1])
    assert importlib.metadata.version("click") != "0.0.7"
    versions = installed.run(files={"requirements.txt": "click==0.0.7\n"})["versions"]
    assert isinstance(versions, dict)
    assert versions["click"] == "0.0.7"
    assert state_of(installed.python.parents[1]) == before


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

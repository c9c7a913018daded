"""An environment on top of a Python: all is seen that this Python sees, and nothing below changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.agent.host.host_python import python_on_top, variables_of

BASE = next(Path(sys.base_prefix, "bin").glob("python3.1?"))  # of no virtual environment


class OnTop:
    """An environment on top of a Python, as a host's programs have it."""

    def __init__(self, python: Path, folder: Path, home: Path) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        own |= {"HOME": str(home)}
        self.folder = folder
        self.python = python_on_top(str(python), folder, own)
        self.variables = own | variables_of(folder, os.defpath)

    def asked(self, *words: str) -> str:
        done = subprocess.run(words, env=self.variables, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    def path(self) -> list[str]:
        return self.asked(self.python, "-c", "import sys; print('\\n'.join(sys.path[1:]))").splitlines()


def module(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(f"def main():\n    import sys\n    print({name!r}, sys.prefix)\n")


def virtual(folder: Path, *options: str) -> Path:
    """Makes a virtual environment with a module. Returns its interpreter."""
    subprocess.run([BASE, "-m", "venv", "--without-pip", *options, str(folder)], check=True)
    module(next(folder.glob("lib/python3*/site-packages")), "below")
    return folder / "bin" / "python"


@pytest.mark.promise("packages", "a job changes no Python of the machine; later processes have what it installs")
@pytest.mark.parametrize("kind", ["isolated", "sees the system's", "none"])
def test_what_the_python_sees_is_seen_in_its_order_behind_what_is_installed(tmp_path: Path, kind: str) -> None:
    options = {"sees the system's": ["--system-site-packages"]}.get(kind, [])
    python = BASE if kind == "none" else virtual(tmp_path / "below", *options)
    home = tmp_path / "home"
    module(home / ".local" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages", "users")
    environ = {"HOME": str(home)}
    words = [python, "-c", "import sys; print('\\n'.join(sys.path[1:]))"]
    seen = subprocess.run(words, env=environ, check=True, capture_output=True, text=True).stdout.splitlines()
    path = OnTop(python, tmp_path / "a b" / "on top", home).path()
    assert [entry for entry in path if "on top" not in entry] == seen
    packages = [entry for entry in path if entry.endswith("-packages")]
    assert Path(packages[0]).is_relative_to(tmp_path / "a b" / "on top")
    assert any(str(home) in entry for entry in path) is (kind != "isolated")


def test_an_environment_on_top_of_another_sees_both_and_runs_the_commands_of_both(tmp_path: Path) -> None:
    python = virtual(tmp_path / "below")
    command = python.with_name("below-say")
    command.write_text(f"#!{python} -E\nfrom below import main\nmain()\n")
    foreign = python.with_name("foreign")
    foreign.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    first = OnTop(python, tmp_path / "a 'b'" / "1", tmp_path)
    module(next(first.folder.glob("lib/python3*/site-packages")), "between")
    second = OnTop(Path(first.python), tmp_path / "2", tmp_path)
    assert second.asked("below-say") == f"below {second.folder}"
    assert second.asked("python", "-c", "import between; between.main()") == f"between {second.folder}"
    assert first.asked("below-say") == f"below {first.folder}"
    assert not (second.folder / "bin" / "foreign").exists()
    assert command.read_text().startswith(f"#!{python} -E\n")


def test_pip_of_a_user_goes_into_the_environment_too(tmp_path: Path) -> None:
    home = tmp_path / "home"
    on_top = OnTop(BASE, tmp_path / "on top", home)
    folder = on_top.asked("python", "-m", "site", "--user-site")
    assert Path(folder).is_relative_to(on_top.folder)
    module(Path(folder), "users")
    assert on_top.asked("python", "-c", "import users; users.main()") == f"users {on_top.folder}"
    assert on_top.asked("pip", "--version").startswith("pip ")
    assert not home.exists()


def test_what_is_no_python_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.SubprocessError):
        python_on_top("/bin/false", tmp_path / "on top", {})

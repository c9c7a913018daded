"""A virtual environment on top of a Python: it sees all that this Python sees, and what is installed goes before it.

pip, in it, installs into it and removes nothing below: whatever a job installs, the Python of the machine stays as it
is. The commands that lie beside that Python (torchrun, accelerate) are there again and run in the environment; pip is
too. What ``pip install --user`` installs lies in it as well.

    bin/  lib/  pyvenv.cfg    as in every virtual environment
    user/                     PYTHONUSERBASE of what runs in it

Another Python runs this module as a script, to have an environment made on top of itself. Standard library only.
"""

from __future__ import annotations

import os
import shlex
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

FOLDER = ".python-"  # and the name of the host, beside its temporary files
PARENT = "_headrace_parent.pth"
USER = "user"
_ASK_SECONDS = 60.0
_LARGEST_COMMAND = 65_536  # bytes; scripts that lead to a package have some hundred


def python_on_top(python: str, folder: Path, variables: Mapping[str, str]) -> str:
    """Makes an environment on top of a Python. Returns its interpreter.

    Args:
        python: its path.
        folder: of the environment; it is not there yet.
        variables: of what will run in it.

    Raises:
        OSError: it cannot be written.
        subprocess.SubprocessError: this is no Python that runs.
    """
    if python == sys.executable:
        make_on_top(folder)
    else:
        words = [python, __file__, str(folder)]
        subprocess.run(words, env=dict(variables), check=True, capture_output=True, timeout=_ASK_SECONDS)
    return str(folder / "bin" / "python")


def variables_of(folder: Path, path: str) -> dict[str, str]:
    """Returns the variables of what runs in an environment.

    Args:
        folder: of the environment.
        path: PATH without it.
    """
    return {
        "PATH": os.pathsep.join([str(folder / "bin"), path]),
        "VIRTUAL_ENV": str(folder),  # by which uv and poetry know where to install
        "PYTHONUSERBASE": str(folder / USER),
    }


def path_here(path: str, own: str) -> str:
    """Returns a PATH of another host, with the commands of this host's environment in place of those there.

    Args:
        path: the other host's PATH.
        own: folder of this host's environment.
    """
    entries = path.split(os.pathsep)
    return os.pathsep.join(f"{own}/bin" if Path(entry).parent.name.startswith(FOLDER) else entry for entry in entries)


def make_on_top(folder: Path) -> None:
    """Makes an environment on top of the Python that runs this. Raises OSError."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    own = folder / "bin"
    own.mkdir(parents=True)
    for name in ("python", "python3", f"python{version}"):
        (own / name).symlink_to(_interpreter(version))
    is_virtual = sys.prefix != sys.base_prefix
    sees_system = not is_virtual or sys.base_prefix in site.PREFIXES  # an isolated one on top of the system's
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(_interpreter(version)).parent}\n"
        f"include-system-site-packages = {str(sees_system).lower()}\n"
        f"version = {sys.version.split()[0]}\n"
    )
    if sys.maxsize > 2**32:
        (folder / "lib64").symlink_to("lib")
    # What is the system's, `site` itself shows; "system" does not mean a virtual environment that lies between.
    _show(_packages(folder), site.getsitepackages([sys.prefix, sys.exec_prefix]) if is_virtual else [])
    if sees_system and site.ENABLE_USER_SITE:
        users = site.getusersitepackages()
        _show(folder / USER / os.path.relpath(users, site.getuserbase()), [users])
    for name in ("pip", "pip3", f"pip{version}"):
        _write_command(own / name, f'#!/bin/sh\nexec {shlex.quote(str(own / "python"))} -m pip "$@"\n'.encode())
    for command in Path(sys.executable).parent.iterdir():
        _show_command(command, own)


def _interpreter(version: str) -> str:
    """The file that runs, not that of a virtual environment, whose packages its own `pyvenv.cfg` tells."""
    if sys.prefix == sys.base_prefix:
        return sys.executable
    named = Path(sys.base_exec_prefix, "bin", f"python{version}")
    return str(named) if os.access(named, os.X_OK) else os.path.realpath(sys.executable)


def _packages(folder: Path) -> Path:
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
    return Path(sysconfig.get_path("purelib", scheme, {"base": str(folder), "platbase": str(folder)}))


def _show(packages: Path, parents: list[str]) -> None:
    packages.mkdir(parents=True)
    if parents:
        lines = [f"import site; site.addsitedir({parent!r})\n" for parent in parents]
        (packages / PARENT).write_text("".join(lines))


def _show_command(command: Path, own: Path) -> None:
    """Shows a script of the Python's own, changed so that it runs in the environment. All else is found by PATH."""
    plain = str(command.parent / "python")
    names = [os.fsencode(plain), os.fsencode(shlex.quote(plain).removesuffix("'"))]
    try:
        if not command.is_file() or command.stat().st_size > _LARGEST_COMMAND:
            return
        text = command.read_bytes()
    except OSError:  # another user's: it cannot be run
        return
    first, _, rest = text.partition(b"\n")
    second = rest.partition(b"\n")[0]
    if not text.startswith(b"#!") or not any(name in line for name in names for line in (first, second)):
        return
    if names[0] in first:
        options = b" ".join(first.split()[1:])
    else:  # #!/bin/sh, and a second line that only the shell runs: a path with blanks, or too long for the kernel
        options, rest = b"", rest.partition(b"\n")[2].partition(b"\n")[2]
    python = os.fsencode(shlex.quote(str(own / "python")))
    head = b"#!/bin/sh\n'''exec' " + python + b" " + options + b' "$0" "$@"\n' + b"' '''\n"
    _write_command(own / command.name, head + rest)


def _write_command(path: Path, text: bytes) -> None:
    if not os.path.lexists(path):
        path.write_bytes(text)
        path.chmod(0o755)


if __name__ == "__main__":
    make_on_top(Path(sys.argv[1]))

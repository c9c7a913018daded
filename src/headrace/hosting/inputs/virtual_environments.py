"""Makes environments of Python packages, each once: `<folder>/<digest>`, see `requirements`.

An environment is a virtual environment on top of the Python that runs headrace, or of another one that the job names:
it sees that one's packages (torch, say), and what it installs goes before them. It is made in a folder of its own,
`.made/<digest>-<letters>`, and then gets its name, a link, in one step: an environment is never seen half made. pip's
temporary files lie in the same folder while it works. The process that makes an environment holds the lock
`.<digest>.lock`; a second job that needs it waits, and then finds it made. What a killed process has left is removed at
the end of its run, or by the next one (`sweep`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from headrace.agent.host.host_python import python_on_top
from headrace.errors import HeadraceError
from headrace.held_file import hold
from headrace.instance.files import told
from headrace.instance.variables import inherited_search_path
from headrace.private_folders import make_folders
from headrace.processes.spawn import spawn

MADE = ".made"
INSTALL_SECONDS = 3600.0
WAIT_SECONDS = 0.1  # between two looks at the lock of an environment that another process makes
LAST_LINES = 12
_DIGITS = 32  # of the holder's number that are shown
TEMPORARY = ".tmp"  # in an environment that is being made


class InstallRequirementsError(HeadraceError):
    """A file of requirements could not be installed.

    Attributes:
        lines: the last of what pip said.
    """

    def __init__(self, message: str, lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.lines = lines


def is_made(environment: Path) -> bool:
    """Tells whether an environment can be used."""
    return (environment / "bin" / "python").exists()


def make(
    environment: Path,
    requirements: Path,
    code: Path,
    log: IO[bytes],
    base: str = "",
    variables: Mapping[str, str] | None = None,
) -> bool:
    """Makes an environment, or waits until another process has made it.

    Args:
        environment: its folder.
        requirements: the file.
        code: where pip runs.
        log: gets all that pip says.
        base: the Python that it is made from; the one that runs headrace if empty.
        variables: the job's, for pip.

    Returns:
        Whether it was made here.

    Raises:
        InstallRequirementsError: pip failed, or took too long.
        StorageError: it cannot be written.
    """
    made = environment.parent / MADE
    with told(str(environment), "written"):
        make_folders(made)
        with _lock(environment):
            if is_made(environment):
                return False
            _remove_leftovers(environment)
            place = Path(tempfile.mkdtemp(prefix=f"{environment.name}-", dir=made))
            try:
                _create(place, base)
                _install(place, requirements, code, log, variables or {})
                shutil.rmtree(place / TEMPORARY)
                link = place / ".link"
                link.symlink_to(os.path.relpath(place, environment.parent))
                link.replace(environment)
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
    return True


def _lock_file(environment: Path) -> Path:
    return environment.with_name(f".{environment.name}.lock")


@contextlib.contextmanager
def _lock(environment: Path) -> Iterator[None]:
    """Holds the lock. Raises InstallRequirementsError when another holder takes longer than an installation may."""
    file, deadline = _lock_file(environment), time.monotonic() + INSTALL_SECONDS
    while (descriptor := hold(file)) is None:
        if time.monotonic() >= deadline:
            holder = file.read_text(errors="replace")[:_DIGITS] or "?"
            raise InstallRequirementsError(
                f"waited {INSTALL_SECONDS:g} s for the process {holder}, which installs into {environment}"
            )
        time.sleep(WAIT_SECONDS)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Removes what was begun by processes that are gone.

    Args:
        folder: that of all environments; it need not exist.
    """
    for path in (folder / MADE).glob("*-*"):
        environment = folder / path.name.rpartition("-")[0]
        with contextlib.suppress(OSError):
            if (descriptor := hold(_lock_file(environment))) is None:
                continue  # it is being made
            try:
                _remove_leftovers(environment)
            finally:
                os.close(descriptor)


def _remove_leftovers(environment: Path) -> None:
    """Removes what is not in use of an environment; its lock is held. Also a name that leads to what was removed."""
    if not environment.exists():
        environment.unlink(missing_ok=True)
    for path in (environment.parent / MADE).glob(f"{environment.name}-*"):
        if not environment.is_symlink() or environment.resolve() != path.resolve():
            shutil.rmtree(path, ignore_errors=True)


def _create(place: Path, base: str) -> None:
    try:
        python_on_top(base or sys.executable, place, os.environ)
    except subprocess.SubprocessError as error:
        words = error.stderr if isinstance(error, subprocess.CalledProcessError) else b""
        lines = tuple(words.decode(errors="replace").strip().splitlines()[-LAST_LINES:])
        raise InstallRequirementsError(
            f"{base} makes no environment: {' '.join(lines[-1:]) or error}", lines
        ) from error


def _install(place: Path, requirements: Path, code: Path, log: IO[bytes], variables: Mapping[str, str]) -> None:
    python = str(place / "bin" / "python")
    search = os.pathsep.join(inherited_search_path(os.environ))  # what is headrace's own satisfies no requirement
    environment = {
        name: value
        for name, value in {**os.environ, "PYTHONPATH": search, **variables}.items()
        if name not in {"PYTHONHOME", "PIP_USER"}
    }
    environment |= {"PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "VIRTUAL_ENV": str(place)}
    temporary = place / TEMPORARY
    temporary.mkdir()
    environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    asked = subprocess.run([python, "-c", "import pip"], check=False, env=environment, cwd=code, capture_output=True)
    if asked.returncode:
        _run([python, "-m", "ensurepip"], environment, code, log)
    _run([python, "-m", "pip", "install", "--no-input", "-r", str(requirements)], environment, code, log)


def _run(argv: list[str], environment: dict[str, str], folder: Path, log: IO[bytes]) -> None:
    log.write(f"$ {' '.join(argv)}\n".encode())
    log.flush()
    begin = log.tell()
    process = spawn(argv, env=environment, cwd=folder, tied=True, stdout=log, stderr=subprocess.STDOUT)
    try:
        code = process.wait(INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise InstallRequirementsError(f"pip took longer than {INSTALL_SECONDS:g} s", _last(log, begin)) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own: what pip has started goes with it
        process.wait()
    if code:
        lines = _last(log, begin)
        wrong = [line for line in lines if line.startswith("ERROR:")] or list(lines)
        raise InstallRequirementsError(f"pip ended with code {code}: {' '.join(wrong[:2])}", lines)


def _last(log: IO[bytes], begin: int) -> tuple[str, ...]:
    with open(log.name, "rb") as file:  # noqa: PTH123
        file.seek(begin)
        return tuple(line for line in file.read().decode(errors="replace").splitlines() if line.strip())[-LAST_LINES:]

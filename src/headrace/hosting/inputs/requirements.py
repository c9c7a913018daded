"""Files of requirements: which environment each needs, by what it says, and how it is made, once.

Two jobs whose files of requirements say the same share an environment, whatever their names. What counts: the text of
the file and of those that it includes (`-r`, `-c`), the content of archives and folders of this machine that it names,
the Python that the environment is made from, the platform, pip's own settings (PIP_* variables) and the variables that
the file names (``${NAME}``). A variable of the job counts before one of the caller, as for its programs.

An environment is a folder `<digest>` in `$HEADRACE_HOME/environments`, which may be removed whenever no job runs. When
the file installs a folder of the code as editable (`-e`), the environment names a path of the run and is the run's own.
It is a virtual environment on top of the Python that runs headrace, or of another one that the job names: it sees that
one's packages (torch, say), and what it installs goes before them. It is made in a folder of its own,
`.made/<digest>-<letters>`, and then gets its name, a link, in one step: an environment is never seen half made. pip's
temporary files lie in the same folder while it works. The process that makes an environment holds the lock
`.<digest>.lock`; a second job that needs it waits, and then finds it made. What a killed process has left is removed at
the end of its run, or by the next one (`sweep`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from headrace.agent.host.host_python import python_on_top
from headrace.errors import HeadraceError, UsageError
from headrace.held_file import hold
from headrace.home import home_dir
from headrace.instance.files import storage_errors
from headrace.instance.variables import inherited_search_path
from headrace.private_folders import make_folders
from headrace.processes.spawn import spawn
from headrace.runs import RunPaths

ENVIRONMENTS = "environments"
DEFAULT = "requirements.txt"
INSTALL = "install"
_FACTS = "import sys, sysconfig; print(sys.implementation.cache_tag, sys.version, sysconfig.get_platform(), sys.prefix)"
_FACTS_SECONDS = 60.0
_CODE_ARTIFACT = "CA_REPOSITORY_ARN"  # by which SageMaker's toolkit takes requirements from AWS's CodeArtifact
_INCLUDES = {"-r", "--requirement", "-c", "--constraint"}
_EDITABLE = {"-e", "--editable"}
_VARIABLE = re.compile(rb"\$\{([A-Z0-9_]+)\}")  # as pip replaces them


class VirtualEnvironment(msgspec.Struct, frozen=True):
    """One environment that a run needs.

    Attributes:
        requirements: the file, inside the code.
        path: folder of the environment; its interpreter is `path`/bin/python.
        groups: instance groups whose programs run in it.
        base: the Python that it is made from; empty for the one that runs headrace.
        variables: the job's, for pip.
    """

    requirements: str
    path: str
    groups: tuple[str, ...]
    base: str = ""
    variables: dict[str, str] = {}

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(Path(self.path, "bin", "python"))


def prepare_install(environments: dict[str, VirtualEnvironment], paths: RunPaths) -> None:
    """Writes `engine/install.json`, unless all environments are there already. Raises OSError."""
    wanted = list({environment.path: environment for environment in environments.values()}.values())
    if all(is_made(Path(environment.path)) for environment in wanted):
        return
    folder = paths.engine
    folder.mkdir(exist_ok=True)
    (folder / f"{INSTALL}.json").write_bytes(msgspec.json.format(msgspec.json.encode(wanted)) + b"\n")


def environments_dir() -> Path:
    """Returns the folder of all environments: $HEADRACE_HOME/environments, by default ~/.headrace/environments."""
    return home_dir() / ENVIRONMENTS


def environment_of(
    requirements: str,
    paths: RunPaths,
    groups: tuple[str, ...],
    base: str = "",
    variables: Mapping[str, str] | None = None,
) -> VirtualEnvironment:
    """Returns the environment for a file of requirements.

    Args:
        requirements: the file, inside the code of the run, which is in place.
        paths: the run's directory.
        groups: the groups that need it.
        base: the Python that it is made from; the one that runs headrace if empty.
        variables: the job's.

    Raises:
        UsageError: the file, or one that it names, cannot be read, there is no such Python, or the packages would come
            from another index than the job names.
    """
    _check_index(requirements, variables or {})
    digest = hashlib.sha256()
    own_variables = dict(variables or {})
    settings = {**os.environ, **own_variables}
    for part in (*(_facts_of(base) if base else _own_facts()), *_pip_settings(settings)):
        _add(digest, str(part).encode(errors="surrogateescape"))
    own = False
    for kind, content in _contents(paths.code / requirements, paths.code, ()):
        _add(digest, content)
        for name in _VARIABLE.findall(content) if not kind else ():
            _add(digest, settings.get(name.decode(), "").encode(errors="surrogateescape"))
        own = own or kind in _EDITABLE
    folder = paths.root / ENVIRONMENTS if own else environments_dir()
    return VirtualEnvironment(requirements, str(folder / digest.hexdigest()[:24]), groups, base, own_variables)


def _check_index(requirements: str, variables: Mapping[str, str]) -> None:
    repository = variables.get(_CODE_ARTIFACT)
    if repository and "PIP_INDEX_URL" not in variables:
        raise UsageError(
            f"environment: {_CODE_ARTIFACT} is {repository}, but {requirements} is not installed from CodeArtifact: "
            "the packages would come from pip's own index",
            f"remove {_CODE_ARTIFACT}, or set PIP_INDEX_URL beside it (to the index with a token, from "
            "`aws codeartifact get-authorization-token`)",
        )


def _own_facts() -> tuple[str, ...]:
    return (str(sys.implementation.cache_tag), sys.version, sysconfig.get_platform(), sys.prefix)


def _facts_of(base: str) -> tuple[str, ...]:
    """Returns what tells a Python from others."""
    try:
        done = subprocess.run([base, "-c", _FACTS], check=True, capture_output=True, timeout=_FACTS_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{base} does not run as a Python: {error}", "name one that does") from error
    return (base, done.stdout.decode(errors="replace"))


def _add(digest: hashlib._Hash, part: bytes) -> None:
    digest.update(b"%d:" % len(part))
    digest.update(part)


def _pip_settings(variables: Mapping[str, str]) -> list[str]:
    return sorted(f"{name}={value}" for name, value in variables.items() if name.startswith("PIP_"))


def _contents(file: Path, folder: Path, above: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    """Yields (option, content) of a file of requirements and of all that it names on this machine.

    Args:
        file: the file.
        folder: where pip runs: paths of archives and folders are relative to it.
        above: the files that include this one.
    """
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"requirements: {file} cannot be read: {error.strerror}", "name a file in source_dir"
        ) from error
    yield "", text
    for line in text.decode(errors="replace").splitlines():
        option, value = _read(line)
        if option in _INCLUDES and "://" not in value:
            included = file.parent / value
            if included not in above:
                yield from _contents(included, folder, (*above, file))
        elif value and "://" not in value:  # the name of a package, or a path
            yield from _local(option, folder / value)


def _read(line: str) -> tuple[str, str]:
    """Returns the option of a line (empty for a plain requirement) and its value."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # pip will say what is wrong with it
        return "", ""
    if not words:
        return "", ""
    option, _, value = words[0].partition("=")
    if option in _INCLUDES | _EDITABLE:
        return option, value or (words[1] if len(words) > 1 else "")
    if words[0][:2] in {"-r", "-c", "-e"} and len(words[0]) > 2 and not words[0].startswith("--"):
        return words[0][:2], words[0][2:]
    if words[0].startswith("-"):
        return "", ""
    return "", words[2] if len(words) > 2 and words[1] == "@" else words[0].split("[")[0] if "/" in words[0] else words[
        0
    ]


def _local(option: str, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the content of an archive or a folder; nothing for the name of a package."""
    if path.is_dir() and (option or (path / "setup.py").exists() or (path / "pyproject.toml").exists()):
        for root, names, files in os.walk(path):
            names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
            for name in sorted(files):
                file = Path(root, name)
                if file.is_file():
                    yield option, str(file.relative_to(path)).encode(errors="surrogateescape")
                    yield option, hashlib.sha256(file.read_bytes()).digest()
    elif path.is_file() and not option:
        yield option, hashlib.sha256(path.read_bytes()).digest()


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
    with storage_errors(str(environment), "written"):
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

"""Unpacks headrace and the run on a host that a platform gives, then becomes its main process: the start of
`headrace.zip`, which Python runs.

    python headrace.zip run FOLDER RUN_DIR HOST WORD    in a pod: unpacks into FOLDER/package and RUN_DIR, becomes `pod`
    python headrace.zip install FOLDER LIBRARY...       has pip bring the libraries that this Python lacks
    python headrace.zip RUN_ID                          in a container on SageMaker: becomes `container_host`

HOST may be ``N+``: the host's number is N and the pod's completion index. What is unpacked lies beside the archive;
nothing is written there.

SageMaker's framework images have a start script of their own, which gives the container its host name and the CUDA
libraries that fit the machine's driver. It is run first, with a program in place of `train` that tells which variables
it sets. So this process stays the container's first, which gets SIGTERM.

Standard library only: nothing else is there yet.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from headrace.install_hint import LIBRARIES
from headrace.private_folders import new_folder

INDEX = "JOB_COMPLETION_INDEX"
PACKAGE, RUN_FILES, SECRET, WHEELS = "headrace.zip", "run.tar.gz", "secret.tar.gz", "libraries.zip"
START_SCRIPT = "start_with_right_hostname.sh"
SCRIPT_SECONDS = 300.0
BASE = "/opt/ml"
TEMPORARY = Path("/tmp")  # whatever TMPDIR says, which need not be the same in every container
SECRET_FOLDER = "secret"
POD, CONTAINER = "headrace.engines.kubernetes.pod", "headrace.engines.sagemaker.container_host"
FAILURE_CHARACTERS = 1024
RESOLVER = "GRPC_DNS_RESOLVER"
_TELLS = """#!/bin/sh
exec "$HEADRACE_PYTHON" -c 'import json, os; json.dump(dict(os.environ), open(os.environ["HEADRACE_TOLD"], "w"))'
"""


def main() -> None:
    """Entry point."""
    verb, *words = sys.argv[1:]
    archive = Path(sys.argv[0]).absolute()
    if verb == "run":
        begin_pod(archive, *words)
    elif verb == "install":
        install(Path(words[0]), words[1:])
    else:
        begin_container(archive.parent, verb)


def begin_pod(archive: Path, folder: str, run: str, host: str, word: str) -> None:
    """Unpacks what a pod needs, and becomes its host."""
    name = host_named(host, os.environ.get(INDEX, "0"))
    try:
        unpack_package(archive, Path(folder))
        unpack_run(archive.parent, Path(run), name)
        settle(folder)
        os.execv(sys.executable, [sys.executable, "-X", "utf8", "-m", POD, run, name, word])
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        complaint = f"error: {name} cannot begin in its pod: {error}"
        if isinstance(error, PermissionError):
            complaint += (
                "; hint: its user must be able to enter the run's directory: set HEADRACE_HOME to a folder that every "
                "user may enter, such as /var/tmp/headrace, and submit the job again"
            )
        Path(word).write_text(complaint, encoding="utf-8")
        sys.exit(complaint)


def unpack_package(archive: Path, folder: Path) -> Path:
    """Unpacks headrace's package. Returns where. Raises OSError, zipfile.BadZipFile."""
    with zipfile.ZipFile(archive) as zipped:
        zipped.extractall(folder / "package")
    return folder / "package"


def host_named(host: str, index: str) -> str:
    """Returns the host's name.

    >>> host_named("algo-2", ""), host_named("3+", "4")
    ('algo-2', 'algo-7')
    """
    return f"algo-{int(host[:-1]) + int(index)}" if host.endswith("+") else host


def unpack_run(source: Path, run: Path, host: str) -> None:
    """Unpacks what all hosts share and what is this one's. Its tree is /opt/ml, or lies in the run's directory.

    A pod whose container is started again finds its files and keeps them.
    """
    tree = run / "hosts" / host
    tree.parent.mkdir(exist_ok=True)
    if not tree.exists():
        tree.symlink_to(BASE)
    for name in (RUN_FILES, f"{host}.tar.gz"):
        with opened(source / name) as archive:
            for member in archive:
                there = run / member.name
                if not (member.isdir() and there.is_dir()):
                    archive.extract(member, run, set_attrs=False)
                    if not member.issym():
                        there.chmod(member.mode)


def opened(archive: Path) -> tarfile.TarFile:
    """Opens an archive that headrace has packed: it holds the user's own code, and nothing else."""
    members = tarfile.open(archive)  # noqa: SIM115  (who asks for it closes it)
    members.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
    return members


def settle(home: str) -> None:
    """Gives a user that the image does not know a home that it may write, in place of such as '/', and a name."""
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ["HOME"] = home
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", f"{os.getuid()}")


def install(folder: Path, libraries: list[str]) -> None:
    """Has pip bring into a folder what this Python lacks of some libraries, named with their least versions."""
    if missing := lacking(libraries):
        words = [sys.executable, "-m", "pip", "install", "--no-input", "--target", str(folder), *missing]
        sys.exit(subprocess.run(words, check=False).returncode)


def lacking(libraries: Iterable[str]) -> list[str]:
    """Returns those of some libraries, named with their least versions, that this Python does not have."""
    modules = {named: module for module, named in LIBRARIES.items()}
    of_library = {each: modules.get(each, each.partition(">")[0]) for each in libraries}
    return [each for each, module in of_library.items() if importlib.util.find_spec(module) is None]


def begin_container(channel: Path, run_id: str) -> None:
    """Unpacks what a container on SageMaker needs from headrace's own channel, and becomes its host."""
    base = Path(os.environ.get("SAGEMAKER_BASE_DIR") or BASE)
    try:
        folder = make_folder(TEMPORARY, run_id)
        words, variables = unpack(folder, channel, run_id)
        os.execve(sys.executable, words, {**after_start_script(folder, dict(os.environ)), **variables})
    except (OSError, subprocess.SubprocessError, tarfile.TarError, zipfile.BadZipFile) as error:
        complaint = f"headrace cannot begin in its container: {error}"
        (base / "output").mkdir(parents=True, exist_ok=True)
        (base / "output" / "failure").write_text(complaint[:FAILURE_CHARACTERS], encoding="utf-8")
        sys.exit(f"error: {complaint}")


def make_folder(parent: Path, run_id: str) -> Path:
    """Makes a new folder for this user only, at the same place in every container of a run: mpirun starts the programs
    of other hosts by paths of its own one.

    Hosts that share a disk cannot all have that place. There the first one has it, where all can read it, and each
    of the others has another.

    Raises:
        OSError: it cannot be made.
    """
    folder = parent / f"headrace-{run_id}"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return new_folder("headrace-")
    return folder


def unpack(folder: Path, channel: Path, run_id: str) -> tuple[list[str], dict[str, str]]:
    """Unpacks all that the host needs.

    Args:
        folder: a new folder, for this user only.
        channel: folder of the channel.
        run_id: id of the run.

    Returns:
        The command line of the host, and its variables.

    Raises:
        OSError, subprocess.SubprocessError, tarfile.TarError, zipfile.BadZipFile: it cannot be unpacked.
    """
    package, wheels = unpack_package(channel / PACKAGE, folder), folder / "libraries"
    missing = lacking(LIBRARIES.values())
    if missing:
        named, own = channel / WHEELS, channel / wheels_for(f"{sys.version_info[0]}.{sys.version_info[1]}")
        install_from(named if named.is_file() else own, missing, folder, wheels)
    target, secrets = folder / run_id, folder / SECRET_FOLDER
    for name, place in ((RUN_FILES, target), (SECRET, secrets)):
        place.mkdir(mode=0o700)
        with opened(channel / name) as archive:
            archive.extractall(place)
    search = [str(package), os.environ.get("PYTHONPATH", ""), str(wheels) if missing else ""]
    words = [sys.executable, "-X", "utf8", "-m", CONTAINER, str(target), str(channel), str(secrets)]
    resolver = os.environ.get(RESOLVER, "native")  # TensorFlow's asks name servers for algo-N, not /etc/hosts
    return words, {"PYTHONPATH": os.pathsep.join(filter(None, search)), RESOLVER: resolver}


def wheels_for(python: str) -> str:
    """Returns the name in the channel of the archive of wheels for a Python, e.g. ``3.12``."""
    return f"libraries-{python}.zip"


def install_from(archive: Path, missing: list[str], folder: Path, target: Path) -> None:
    """Has pip install what is missing from the wheels that came along, without a network.

    Args:
        archive: of wheels.
        missing: names of libraries.
        folder: for temporary files.
        target: where they are installed.

    Raises:
        OSError, zipfile.BadZipFile: they cannot be installed.
    """
    if not archive.is_file():
        raise OSError(f"the image's Python, {sys.executable}, has no {', '.join(missing)}, and none came with the job")
    wheels = folder / "wheels"
    with zipfile.ZipFile(archive) as zipped:
        zipped.extractall(wheels)
    pip = [sys.executable, "-m", "pip", "install", "--no-input", "--no-index", "--find-links", str(wheels)]
    done = subprocess.run([*pip, "--target", str(target), *missing], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        told = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise OSError(f"{', '.join(missing)} cannot be installed for {sys.executable}: {told[0]}")


def after_start_script(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """Runs the image's start script, if it has one. Returns the variables that programs have after it.

    Args:
        folder: for temporary files.
        variables: of this process.

    Raises:
        OSError, subprocess.SubprocessError: it does not end, or cannot be started.
    """
    if shutil.which(START_SCRIPT, path=variables.get("PATH")) is None:
        return variables
    stand_in, told = folder / "bin" / "train", folder / "variables.json"
    stand_in.parent.mkdir()
    stand_in.write_text(_TELLS)
    stand_in.chmod(0o700)
    ours = {"HEADRACE_PYTHON": sys.executable, "HEADRACE_TOLD": str(told)}
    path = f"{stand_in.parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
    subprocess.run(
        ["bash", "-m", START_SCRIPT, "train"],
        env={**variables, **ours, "PATH": path},
        check=False,  # what it does before `train` counts, and that is told
        timeout=SCRIPT_SECONDS,
    )
    if not told.is_file():
        print(f"warning: {START_SCRIPT} of the image did not come to `train`: what it does is not done", flush=True)
        return variables
    found: dict[str, str] = json.loads(told.read_text())
    kept = {name: value for name, value in found.items() if name not in ours and name not in ("SHLVL", "_", "PWD")}
    return {**kept, "PATH": found["PATH"].removeprefix(f"{stand_in.parent}{os.pathsep}")}


if __name__ == "__main__":
    main()

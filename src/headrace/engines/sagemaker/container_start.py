"""Unpacks headrace and the run in a container, then becomes its host: the start of `headrace.zip`, which Python runs.

    python headrace.zip RUN_ID

The archive lies in the folder of headrace's own input channel, with what it unpacks; nothing
is written there.

SageMaker's framework images have a start script of their own, which gives the container its host name and the CUDA
libraries that fit the machine's driver. It is run first, with a program in place of `train` that tells which variables
it sets. So this process stays the container's first, which gets SIGTERM.

Standard library only: nothing else is there yet.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from headrace import host_libraries
from headrace.private_folders import new_folder

START_SCRIPT = "start_with_right_hostname.sh"
SCRIPT_SECONDS = 300.0
BASE = "/opt/ml"
TEMPORARY = Path("/tmp")  # whatever TMPDIR says, which need not be the same in every container
PACKAGE, RUN, SECRET, LIBRARIES = "headrace.zip", "run.tar.gz", "secret.tar.gz", "libraries.zip"
SECRET_FOLDER = "secret"
HOST = "headrace.engines.sagemaker.container_host"
FAILURE_CHARACTERS = 1024
RESOLVER = "GRPC_DNS_RESOLVER"
_TELLS = """#!/bin/sh
exec "$HEADRACE_PYTHON" -c 'import json, os; json.dump(dict(os.environ), open(os.environ["HEADRACE_TOLD"], "w"))'
"""


def main() -> None:
    """Entry point."""
    run_id, channel = sys.argv[1], Path(sys.argv[0]).absolute().parent
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
    package, wheels = folder / "package", folder / "libraries"
    with zipfile.ZipFile(channel / PACKAGE) as zipped:
        zipped.extractall(package)
    missing = [name for module, name in host_libraries.LIBRARIES.items() if importlib.util.find_spec(module) is None]
    if missing:
        named, own = channel / LIBRARIES, channel / libraries_for(f"{sys.version_info[0]}.{sys.version_info[1]}")
        install_from(named if named.is_file() else own, missing, folder, wheels)
    target = folder / run_id
    target.mkdir(mode=0o700)
    _untar(channel / RUN, target)
    (folder / SECRET_FOLDER).mkdir(mode=0o700)
    _untar(channel / SECRET, folder / SECRET_FOLDER)
    search = [str(package), os.environ.get("PYTHONPATH", ""), str(wheels) if missing else ""]
    words = [sys.executable, "-X", "utf8", "-m", HOST, str(target), str(channel), str(folder / SECRET_FOLDER)]
    resolver = os.environ.get(RESOLVER, "native")  # TensorFlow's asks name servers for algo-N, not /etc/hosts
    return words, {"PYTHONPATH": os.pathsep.join(filter(None, search)), RESOLVER: resolver}


def libraries_for(python: str) -> str:
    """Returns the name in the channel of the archive of wheels for a Python, e.g. ``3.12``."""
    return f"libraries-{python}.zip"


def _untar(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as members:
        members.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # headrace has packed it
        members.extractall(target)


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

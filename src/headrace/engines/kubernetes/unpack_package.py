"""Unpacks headrace and the run in a pod, then becomes the host's entry: the start of `headrace.zip`, which Python runs.

    python headrace.zip run FOLDER RUN_DIR HOST WORD    unpacks into FOLDER/package and RUN_DIR, becomes `pod`
    python headrace.zip install FOLDER LIBRARY...       has pip bring the libraries that this Python lacks

HOST may be ``N+``: the host's number is N and the pod's completion index. What is unpacked lies beside the archive.
Standard library only: nothing else is there yet.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from headrace.host_libraries import LIBRARIES

INDEX = "JOB_COMPLETION_INDEX"


def main() -> None:
    """Entry point."""
    verb, folder, *rest = sys.argv[1:]
    archive = Path(sys.argv[0]).absolute()
    if verb == "install":
        install(Path(folder), rest)
        return
    run, host, word = rest
    name = host_named(host, os.environ.get(INDEX, "0"))
    words = [sys.executable, "-X", "utf8", "-m", "headrace.engines.kubernetes.pod", run, name, word]
    try:
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(Path(folder, "package"))
        unpack_run(archive.parent, Path(run), name)
        settle(folder)
        os.execv(sys.executable, words)
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        complaint = f"error: {name} cannot begin in its pod: {error}"
        if isinstance(error, PermissionError):
            complaint += (
                "; hint: its user must be able to enter the run's directory: set HEADRACE_HOME to a folder that every "
                "user may enter, such as /var/tmp/headrace, and submit the job again"
            )
        Path(word).write_text(complaint, encoding="utf-8")
        sys.exit(complaint)


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
        tree.symlink_to("/opt/ml")
    for name in ("run.tar.gz", f"{host}.tar.gz"):
        with tarfile.open(source / name) as archive:
            archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # it is the user's own code
            for member in archive:
                there = run / member.name
                if not (member.isdir() and there.is_dir()):
                    archive.extract(member, run, set_attrs=False)
                    if not member.issym():
                        there.chmod(member.mode)


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
    missing = [each for each in libraries if not _is_there(each)]
    if missing:
        words = [sys.executable, "-m", "pip", "install", "--no-input", "--target", str(folder), *missing]
        sys.exit(subprocess.run(words, check=False).returncode)


def _is_there(library: str) -> bool:
    modules = {wanted: module for module, wanted in LIBRARIES.items()}
    return importlib.util.find_spec(modules.get(library, library.partition(">")[0])) is not None


if __name__ == "__main__":
    main()

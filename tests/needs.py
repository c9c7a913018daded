"""What a test needs of the machine, said in one way: ``@pytest.mark.needs("mpirun", "libmpi")``, `require` within it.

`NEEDS` is the one table: each name, how it is looked for, and what brings it. What lacks something is skipped, and the
end of the run lists the commands that would bring it, with the number of tests; in CI a skip is a failure.
`scripts/bare-box` runs tests where what `HIDDEN` names is not there: so a test that forgot its marker is found.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
# Programs and libraries that a bare machine lacks; patterns of names below /usr. Whatever is here has a row in NEEDS.
HIDDEN = (
    *("bin/mpirun*", "bin/mpiexec*", "bin/orted*", "bin/orterun*", "lib/*/libmpi*", "lib/*/libopen-*", "lib/*/openmpi"),
    *("bin/pasta*", "bin/passt*", "sbin/nft", "bin/fusermount*", "lib/*/libfuse*"),
    *("sbin/slurm*", "bin/sbatch", "bin/squeue", "bin/srun", "bin/scontrol", "bin/sacct*", "sbin/munged", "bin/munge"),
    *("bin/chromium*", "bin/google-chrome*", "lib/postgresql", "bin/g++*", "bin/c++*", "bin/x86_64-linux-gnu-g++*"),
    *("bin/cmake", "sbin/mariadbd", "sbin/mysqld"),
)


BARE = "HEADRACE_TESTS_BARE"  # set where what HIDDEN names is hidden: a skip is no failure there, in CI too
TOUCHING = "touching"  # its value where only those tests run that may touch what is hidden, see `touches`
ROW_BY_ROW = {"test_local_fault_table.py", "test_engine_table.py"}  # each row has its own needs


class Need(NamedTuple):
    """One thing that a test may need.

    Attributes:
        why_not: says what is missing; nothing when it is there.
        brought_by: the command that brings it, or what the machine must allow.
    """

    why_not: Callable[[], str]
    brought_by: str


class Lacking(pytest.skip.Exception):
    """A test is skipped, because of `commands` that were not run."""

    __module__ = "builtins"  # as pytest's own, whose name is not shown

    def __init__(self, reason: str, commands: tuple[str, ...]) -> None:
        super().__init__(reason, _use_item_location=True)
        self.commands = commands


Lacking.__name__ = Lacking.__qualname__ = "Skipped"


def chromium() -> str | None:
    """Path of the browser."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


def _programs(*names: str) -> Callable[[], str]:
    def missing() -> str:
        lacking = [name for name in names if shutil.which(name, path=SYSTEM_PATH) is None]
        return f"{', '.join(lacking)}: not installed" if lacking else ""

    return missing


def _libraries(*names: str) -> Callable[[], str]:
    @functools.cache
    def missing() -> str:
        for name in names:
            try:
                ctypes.CDLL(name)
            except OSError:
                continue
            return ""
        return f"{names[0]}: no such library"

    return missing


def _module(name: str) -> Need:
    def missing() -> str:
        return "" if importlib.util.find_spec(name) else f"{name}: not installed in this Python"

    return Need(missing, "make test, whose environment has it")


def _made(path: str, command: str) -> Need:
    return Need(lambda: "" if (ROOT / path).exists() else f"{path}: not made", command)


def _root() -> str:
    return "" if os.geteuid() == 0 else "this user is not root"


def _fuse() -> str:
    from headrace.instance.channels import mounts

    return mounts.why_not()[0]


def _examined(level: str) -> Callable[[], str]:
    def missing() -> str:
        from headrace.hosting.isolation.probing import examine

        return str(getattr(examine(), level))

    return missing


def _control_groups(*controllers: str) -> Callable[[], str]:
    def missing() -> str:
        from headrace.engines.local.cgroups import find_places

        lacking = set(controllers) - set(find_places().found)
        return f"control groups for {', '.join(sorted(lacking))}: {find_places().missing}" if lacking else ""

    return missing


def _boxes() -> str:
    import apart

    return apart.why_not()


def _shared_memory() -> str:
    import apart

    return "" if apart.has_own_shared_memory() else "this process shares its /dev/shm"


@functools.cache
def _firewall() -> str:
    if shutil.which("nft", path=SYSTEM_PATH) is None:
        return ""  # a row of its own
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "nft", "list", "ruleset"], capture_output=True, text=True, check=False
    )
    return f"no network of one's own with rules: {tried.stderr.strip()}" if tried.returncode else ""


def _postgresql() -> str:
    return "" if sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres")) else "PostgreSQL: not installed"


def oracle() -> Path:
    """The Python with SageMaker's own training toolkit, in the environment that `make test` makes."""
    return Path(os.environ.get("HEADRACE_ORACLE_PYTHON") or ROOT / ".venv-oracle" / "bin" / "python")


def _apt(package: str) -> str:
    return f"apt-get install {package}"


NEEDS: dict[str, Need] = {
    "mpirun": Need(_programs("mpirun", "orted"), _apt("openmpi-bin")),
    "libmpi": Need(_libraries("libmpi.so", "libmpi.so.40", "libmpi.so.12"), _apt("libopenmpi-dev")),
    "fuse": Need(_fuse, _apt("fuse3")),
    "libfuse": Need(_libraries("libfuse3.so.3", "libfuse.so.2", "libfuse3.so.4"), _apt("fuse3")),
    "nft": Need(_programs("nft"), _apt("nftables")),
    "ip": Need(_programs("ip"), _apt("iproute2")),
    "nsenter": Need(_programs("nsenter", "unshare"), _apt("util-linux")),
    "slurm": Need(_programs("slurmctld", "slurmd"), _apt("slurmctld slurmd")),
    "sbatch": Need(_programs("sbatch"), _apt("slurm-client")),
    "munge": Need(_programs("munged"), _apt("munge")),
    "slurmdbd": Need(_programs("slurmdbd"), _apt("slurmdbd")),
    "mariadb": Need(_programs("mariadbd"), _apt("mariadb-server")),
    "chromium": Need(lambda: "" if chromium() else "no Chromium", _apt("chromium")),
    "postgresql": Need(_postgresql, _apt("postgresql")),
    "g++": Need(lambda: "" if shutil.which("g++") or shutil.which("c++") else "no C++ compiler", _apt("g++")),
    ".venv-horovod": _made(".venv-horovod/ready", "make horovod"),
    ".venv-openmpi5": _made(".venv-openmpi5/ready", "make openmpi5"),
    ".venv-sagemaker": _made(".venv-sagemaker/ready", "make sagemaker-sdk"),
    "oracle": Need(lambda: "" if oracle().exists() else "sagemaker-training: not made", "make .venv-oracle/ready"),
    "slurm-24.11": _made(".cache/slurm-24.11", "scripts/slurm-release 24.11"),
    **{name: _module(name) for name in ("mpi4py", "torch", "tensorflow", "jax", "moto", "botocore", "obstore")},
    **{name: _module(name) for name in ("pyarrow", "datasets", "tensorboard", "mlflow", "wandb")},
    "root": Need(_root, "root"),
    "boxes": Need(_boxes, "root, or user namespaces"),
    "firewall": Need(_firewall, "root"),
    "namespaces": Need(_examined("namespace"), "root, or user namespaces"),
    "way out": Need(_examined("outward"), _apt("passt nftables")),
    "overlays": Need(_examined("overlay"), "overlays"),
    "memory groups": Need(_control_groups("memory"), "root, and control groups"),
    "cpu groups": Need(_control_groups("cpu"), "root, and control groups"),
    "own shared memory": Need(_shared_memory, "root"),
    "kubernetes": Need(lambda: "" if "KUBERNETES_CLUSTER" in os.environ else "no cluster", "make kubernetes"),
    "jax with CUDA": Need(lambda: "JAX computes on the CPU", "a GPU, and JAX built with CUDA"),
    "glibc": Need(lambda: "" if hasattr(ctypes.CDLL(None), "mallopt") else "not glibc", "another C library"),
    "no /opt/ml": Need(lambda: "/opt/ml exists" if Path("/opt/ml").exists() else "", "a machine without /opt/ml"),
    "2 cores": Need(lambda: "" if len(os.sched_getaffinity(0)) > 1 else "one core", "a machine with two cores"),
}


_PACKAGES = "|".join(re.escape(name) for name, need in NEEDS.items() if need.brought_by.startswith(_apt("")))
_NAMES = re.compile(
    rf"(needs|require)\([^)]*\"({_PACKAGES})\"|needs_(slurm|fuse)"
    r"|\b(mpirun|orted|mpi4py|lightning|pasta|nft|fusermount|libfuse|slurmctld|chromium)\b"
)


def lacking(*names: str) -> Lacking | None:
    """Returns why a test that needs these is skipped; None when all are there. Raises KeyError: no row of the table."""
    rows = {name: (NEEDS[name], NEEDS[name].why_not()) for name in names}
    missing = {name: need for name, (need, why) in rows.items() if why}
    if not missing:
        return None
    commands = tuple(dict.fromkeys(need.brought_by for need in missing.values()))
    whys = "; ".join(dict.fromkeys(rows[name][1] for name in missing))
    return Lacking(f"needs {', '.join(missing)}: {whys} ({'; '.join(commands)})", commands)


def require(*names: str) -> None:
    """Skips the test that runs, where this machine lacks something: for what only its course tells."""
    if skipped := lacking(*names):
        raise skipped


def touches(item: pytest.Item) -> bool:
    """Whether a test may touch what is hidden: it, or its file, speaks of it. Long trainings do not tell more."""
    if item.get_closest_marker("slow"):
        return False
    names = {name for marker in item.iter_markers("needs") for name in marker.args}
    if any(NEEDS[name].brought_by.startswith(_apt("")) for name in names):
        return True
    return item.path.name not in ROW_BY_ROW and speaks_of_needs(item.path)


@functools.cache
def speaks_of_needs(path: Path) -> bool:
    """Whether a file of tests names what is hidden, or says what it needs."""
    return _NAMES.search(path.read_text()) is not None


def summary(commands_of_tests: list[tuple[str, ...]]) -> list[str]:
    """Returns the lines that tell what was skipped, and what would bring it.

    >>> fuse = ("apt-get install fuse3",)
    >>> print(*summary([fuse, ("apt-get install passt", "root"), fuse]), sep="\\n")
      2 tests: apt-get install fuse3
      1 test: apt-get install passt; root
    all of the packages: apt-get install fuse3 passt
    """
    counts: dict[str, int] = {}
    for commands in commands_of_tests:
        key = "; ".join(sorted(commands))
        counts[key] = counts.get(key, 0) + 1
    lines = [
        f"{count:3d} test{'s' if count > 1 else ''}: {command}"
        for command, count in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    ]
    apt = _apt("")
    packages = {
        command.removeprefix(apt) for commands in commands_of_tests for command in commands if command.startswith(apt)
    }
    names = sorted({name for package in packages for name in package.split()})
    return [*lines, *([f"all of the packages: {apt}{' '.join(names)}"] if names else [])]

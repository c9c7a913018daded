"""Which isolation this machine allows, by trying it.

That all works is kept in headrace's home until anything changes that it depends on, as far as that can be seen from
here: the boot, this process's namespaces and rights, limits, programs, file systems. What does not work is tried again
each time, and `headrace doctor` tries all. A run whose hosts then cannot be isolated fails, and the next one tries
anew: a run never goes on with less.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from pathlib import Path

import msgspec

from headrace._version import __version__
from headrace.child_python import module_command
from headrace.home import home_dir
from headrace.hosting.isolation import filesystem, network, network_layout, syscalls
from headrace.hosting.supervision.cleanup import passing_scratch
from headrace.private_folders import write_private
from headrace.record_files import read_record
from headrace.runs import runs_dir

OVERLAY = "overlay: "  # what the probe says before why there can be none
PROBE = "headrace.hosting.isolation.probe"
SECONDS = 60.0
TRIED = "isolation.json"
"""File of a home: what worked, and where."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATUS = Path("/proc/self/status")
_RIGHTS = ("Uid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:")
_LIMITS = {
    "/proc/sys/user/max_user_namespaces": "0",
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}
"""Settings of the kernel, with the value by which they forbid namespaces in a user namespace."""


class Findings(msgspec.Struct, frozen=True):
    """What this machine allows.

    Attributes:
        namespace: why level ``namespace`` does not work; empty when it does.
        shared_network: why level ``shared_network`` does not work; empty when it does.
        outward: why instances in namespaces would have no way out of the job's network; empty when they have one.
        connected: whether the machine itself has a default route.
        user_namespace: whether instances are in a user namespace, because this process is not root.
        overlay: why instances could not write to views of their channels; empty when they can.
    """

    namespace: str
    outward: str
    connected: bool
    user_namespace: bool
    overlay: str = ""
    shared_network: str = ""


class _Tried(msgspec.Struct, frozen=True):
    surroundings: tuple[str, ...]
    findings: Findings


@functools.cache
def examine() -> Findings:
    """Returns what this machine allows; tries to make an instance unless that is known, 0.2 s. Nothing is left."""
    connected = network_layout.has_default_route(_routes())
    surroundings, file = _surroundings(connected), home_dir() / TRIED
    try:
        tried = msgspec.json.decode(read_record(file), type=_Tried)
        if tried.surroundings == surroundings:
            return tried.findings
    except (OSError, ValueError):
        pass  # nothing has worked yet, or the file is damaged: it is tried, and written anew
    findings = _examine(connected)
    if not (findings.namespace or findings.outward or findings.overlay) and os.path.isdir(file.parent):
        write_private(file, msgspec.json.encode(_Tried(surroundings, findings)))
    return findings


def forget() -> None:
    """Has a process that has not examined this machine yet try it. Raises OSError."""
    (home_dir() / TRIED).unlink(missing_ok=True)


def _surroundings(connected: bool) -> tuple[str, ...]:
    """Returns what the findings depend on, as far as it can be seen."""
    programs = [program for name in network.PROGRAMS if (program := network.program(name))]
    stamps = [f"{program} {Path(program).stat().st_mtime_ns}" for program in programs]
    limits = [f"{name} {_setting(name)}" for name in _LIMITS]
    spaces = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("mnt", "user", "net", "pid")]
    rights = [line for line in _STATUS.read_text().splitlines() if line.startswith(_RIGHTS)]
    place = _place_of_runs()
    where = f"{place} {place.stat().st_dev}"
    return (__version__, _BOOT.read_text().strip(), str(connected), where, *spaces, *rights, *limits, *stamps)


def _place_of_runs() -> Path:
    """Returns the folder that is there of those in which runs will be."""
    return next(parent for parent in (runs_dir(), *runs_dir().parents) if os.path.isdir(parent))


def _setting(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:  # kernels differ in what they have
        return ""


def _examine(connected: bool) -> Findings:
    user_namespace = not syscalls.may_separate()
    lacking = "; ".join(network.missing()) if connected else "this machine has no default route"
    outward, overlay = (lacking, "") if lacking else _try(user_namespace, outward=True)
    namespace = shared_network = ""
    if outward:
        namespace, overlay = _try(user_namespace)
    if namespace:  # else an instance on the machine's network works too: it needs less
        shared_network, overlay = _try(user_namespace, own_network=False)
    if shared_network:
        reason = likely_reason(user_namespace)
        namespace, shared_network = (f"{words} ({reason})" for words in (namespace, shared_network))
    return Findings(namespace, outward, connected, user_namespace, overlay, shared_network)


@functools.cache
def why_no_shared_network() -> str:
    """Returns why level ``shared_network`` does not work here; empty when it does. Tries it, once a process."""
    user_namespace = not syscalls.may_separate()
    why, _ = _try(user_namespace, own_network=False)
    return why and f"{why} ({likely_reason(user_namespace)})"


def network_here() -> str:
    """Returns the first two numbers of the addresses of isolated hosts on this machine."""
    return network_layout.choose_network(_routes())


def _routes() -> str:
    try:
        return Path(network_layout.ROUTES).read_text()
    except OSError:
        return ""


def _try(user_namespace: bool, *, outward: bool = False, own_network: bool = True) -> tuple[str, str]:
    """Makes one instance. Returns why it did not work, and why an overlay in it did not; empty when they did."""
    with contextlib.ExitStack() as stack:
        folder, place = stack.enter_context(passing_scratch()), _place_of_runs()
        try:  # where overlays will be; it may be another file system
            overlay = str(stack.enter_context(passing_scratch(place)))
        except OSError as error:
            overlay, why_not = "", f"{place} cannot be written: {error.strerror or error}"
        else:
            why_not = ""
        for part in ("tree", "files"):
            (folder / part).mkdir()
        for file in ("hosts", "resolv.conf"):
            (folder / "files" / file).touch()
        prefix = network_here()
        network_layout.Layout(
            user_namespace=user_namespace,
            outward=outward,
            own_resolver=False,
            gateway=network_layout.gateway_of(prefix),
            visible=network_layout.shown_below_tmp([overlay]),
            files=str(folder / "files"),
            instances=(network_layout.Instance("algo-1", network_layout.address_of(prefix, 1), str(folder / "tree")),),
            own_network=own_network,
        ).write(folder / network_layout.FILE)
        package = str(Path(__file__).resolve().parents[3])
        try:
            done = subprocess.run(
                module_command(PROBE, str(folder), overlay, options=["-S"]),
                env={**os.environ, "PYTHONPATH": package},
                cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
                start_new_session=True,  # Ctrl-C in a terminal is for headrace: here it would be a reason
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"trying it took longer than {SECONDS:g} s", why_not
    if done.returncode == 0:
        told = done.stdout.strip().removeprefix(OVERLAY)
        other = f"{told} (an old Linux, or $HEADRACE_HOME on a file system that can hold none: name a folder of a disk)"
        return "", why_not or (other if told else "")
    words = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return words[-1] if words else f"trying it ended with code {done.returncode}", why_not


def likely_reason(user_namespace: bool) -> str:
    """Returns what most likely stands in the way of namespaces.

    Args:
        user_namespace: whether they were tried in a user namespace.
    """
    if not filesystem.OPT.is_dir():
        return "there is no /opt to show /opt/ml in: mkdir /opt"
    if user_namespace:
        for path, value in _LIMITS.items():
            if _setting(path) == value:
                name = path.removeprefix("/proc/sys/").replace("/", ".")
                return f"{name} is {value}: an administrator can change that with sysctl"
    return "in a container? it must be allowed to make namespaces and to mount /proc"

"""Which isolation this machine allows, by trying it."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import tempfile
from pathlib import Path

import msgspec

from headrace.child_python import module_command
from headrace.hosting.isolation import filesystem, network_layout, syscalls, uplink
from headrace.runs import runs_dir

OVERLAY = "overlay: "  # what the probe says before why there can be none
PROBE = "headrace.hosting.isolation.probe"
SECONDS = 60.0


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


@functools.cache
def examine() -> Findings:
    """Tries to make an instance, once a process: 0.2 s. Nothing is left of it."""
    user_namespace = not syscalls.may_separate()
    connected = network_layout.has_default_route(_routes())
    lacking = "; ".join(uplink.missing()) if connected else "this machine has no default route"
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
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-probe-")))
        try:  # where overlays will be; it may be another file system
            place = next(parent for parent in (runs_dir(), *runs_dir().parents) if os.path.isdir(parent))
            overlay = stack.enter_context(tempfile.TemporaryDirectory(prefix=".headrace-probe-", dir=place))
        except OSError as error:
            overlay, why_not = "", f"{place} cannot be written: {error.strerror}"
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
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"trying it took longer than {SECONDS:g} s", why_not
        for path in Path(overlay).glob("own/work/*") if overlay else ():
            path.chmod(0o700)  # the kernel's own, closed to everybody but root
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
    limits = {
        "/proc/sys/user/max_user_namespaces": ("0", "user.max_user_namespaces is 0"),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone is 0"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "kernel.apparmor_restrict_unprivileged_userns is 1",
        ),
    }
    if user_namespace:
        for path, (value, words) in limits.items():
            if Path(path).exists() and Path(path).read_text().strip() == value:
                return f"{words}: an administrator can change that with sysctl"
    return "in a container? it must be allowed to make namespaces and to mount /proc"

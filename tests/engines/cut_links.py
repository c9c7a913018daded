"""Cuts and heals the cable of an instance of a running job: `cut(paths, "algo-2")`, `heal(paths, "algo-2")`.

A cut host goes on running, and no process is notified: that is what a pulled cable, a dead switch or a lost machine
look like to its peers. Neither the host nor its programs can heal it; the other end of the cable is in the job's own
namespace.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from headrace.errors import UsageError
from headrace.hosting.isolation import syscalls
from headrace.hosting.isolation.netlink import Netlink
from headrace.hosting.isolation.network_layout import FILE, LINKS, Layout
from headrace.runs import RunPaths

SECONDS = 20.0


def cut(paths: RunPaths, host: str) -> None:
    """Takes a host off the job's network, both ways.

    Args:
        paths: the run.
        host: name of the host.

    Raises:
        UsageError: the run is not isolated, has no such host, or is over.
    """
    _turn(paths, host, on=False)


def heal(paths: RunPaths, host: str) -> None:
    """Puts a host back on the job's network. Raises what `cut` raises."""
    _turn(paths, host, on=True)


def _turn(paths: RunPaths, host: str, on: bool) -> None:
    engine = paths.engine
    try:
        layout = Layout.read(engine / FILE)
        layout.instance(host)
    except FileNotFoundError:
        raise UsageError(
            f"{paths.id}: its hosts have no network of their own", hint="only with engines.local.isolation: namespace"
        ) from None
    except KeyError:
        raise UsageError(f"{paths.id} has no host {host!r}", hint="hosts are named algo-1, algo-2, ...") from None
    opened: list[int] = []
    try:
        places = json.loads((engine / LINKS).read_text())
        for name in ("net", "user"):
            opened.append(os.open(f"/proc/{places['supervisor']}/fd/{places[name]}", os.O_RDONLY))
        numbers = [str(opened[0]), str(opened[1] if layout.user_namespace else -1)]
        # A process of its own, because a process with threads cannot enter a user namespace.
        subprocess.run(
            [sys.executable, __file__, *numbers, host, str(int(on))],
            pass_fds=opened, capture_output=True, text=True, timeout=SECONDS, check=True,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(
            f"the network of {paths.id} is not there: {error}", hint="is the run still going on?"
        ) from None
    except subprocess.CalledProcessError as error:
        raise UsageError(
            f"the network link of {host} cannot be {'healed' if on else 'cut'}: {error.stderr.strip().splitlines()[-1]}"
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Enters the job's network and turns the host's end of the cable: NET USER HOST 0|1."""
    net, user = int(arguments[0]), int(arguments[1])
    if user >= 0:
        syscalls.setns(user, syscalls.CLONE_NEWUSER)
    syscalls.setns(net, syscalls.CLONE_NEWNET)
    with Netlink() as links:
        links.turn(socket.if_nametoindex(arguments[2]), on=arguments[3] == "1")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The names of the hosts, algo-N, in /etc/hosts of a pod whose cluster's DNS knows the hosts by other names."""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path

from headrace.instance.launch_plan import LaunchPlan

_log = logging.getLogger(__name__)

HOSTS = Path("/etc/hosts")
POLL = 0.5


def name_hosts(plan: LaunchPlan, file: Path = HOSTS) -> None:
    """Waits until all hosts have addresses, and writes their names down. Where the file may not be written: nothing.

    A host that has no address within `start_timeout` is left out: that it does not come is told elsewhere.

    Raises:
        OSError: the file cannot be written all the same.
    """
    if not os.access(file, os.W_OK):
        _log.warning("%s may not be written: the names algo-N do not resolve in this pod", file)
        return
    deadline = time.monotonic() + plan.start_timeout
    missing = {host.name: host.address for host in plan.hosts}
    while missing and time.monotonic() < deadline:
        for name, address in list(missing.items()):
            found = _resolved(address)
            if found:
                with file.open("a", encoding="utf-8") as out:
                    out.write(f"{found}\t{name}\n")
                del missing[name]
        if missing:
            time.sleep(POLL)
    if missing:
        _log.warning("no address yet: %s", ", ".join(missing))


def _resolved(address: str) -> str:
    try:
        return socket.gethostbyname(address)
    except OSError:
        return ""

"""The layout that the programs of isolation get, and facts about addresses. Pure, but it reads the machine's routes.

The job's network is a /16 that none of the machine's routes meets. Host algo-n is its n-th address, the bridge its
last one. `Layout` lies in the run as engine/isolation.json, plain JSON, because what reads it has no msgspec.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

FILE = "isolation.json"
LINKS = "network.json"  # how others find the job's namespaces, see `links`
INTERFACE = "eth0"  # of an instance, in the job's network
BRIDGE = "bridge"
BITS = 16
CANDIDATES = ("10.77", "10.177", "172.29", "192.168", "198.18")
ROUTES = "/proc/net/route"
RESOLVER = "/etc/resolv.conf"
HOSTS = "/etc/hosts"
CLOSED = "closed"  # in the last message of the network's keeper: how pasta ended, a wait status
HOSTS_SECONDS = 30.0  # for the first process of an instance to be there
MACHINE_ADDRESS = "169.254.77.1"  # where instances with a way out find what listens on the machine's 127.0.0.1
MACHINE_NAME = "machine.headrace.internal"
DNS_ADDRESS = "169.254.77.53"  # forwarded to the machine's first name server


class View(NamedTuple):
    """What a host sees of one channel, see `filesystem`.

    Attributes:
        channel: its name.
        source: directory of the machine that holds what the host gets.
        own: directory for what the host writes to it; empty when the view is read-only.
        links: directory with links in place of those of `source` that would lead elsewhere; empty for none.
        root_file: file that names the directory into which the links of `source` lead, if it is there; empty for none.
    """

    channel: str
    source: str
    own: str = ""
    links: str = ""
    root_file: str = ""


class Instance(NamedTuple):
    """One host.

    Attributes:
        name: algo-n.
        address: its address in the job's network.
        tree: directory of the machine that it sees as /opt/ml.
        bandwidth: bits per second that it sends, and receives, at most; 0 means no limit.
        checkpoints: path at which it sees `tree`/checkpoints besides; empty for none.
        views: its channels, but for those that are read from FIFOs and FUSE mounts.
        code: snapshot of the code that it shares with others: what it changes goes to `tree`/code. Empty: all of
            `tree`/code is its own.
        code_work: directory for that overlay, on the same file system.
    """

    name: str
    address: str
    tree: str
    bandwidth: int = 0
    checkpoints: str = ""
    views: tuple[View, ...] = ()
    code: str = ""
    code_work: str = ""


class Layout(NamedTuple):
    """A job's isolation.

    Attributes:
        user_namespace: whether instances are in a user namespace, that is: root is not needed.
        outward: whether there is a way out of the job's network.
        own_resolver: whether the machine's only name servers listen on its loopback.
        gateway: address of the bridge.
        visible: paths below /tmp that instances see all the same.
        files: directory with hosts and resolv.conf; one that is no absolute path lies in the run's temporary files.
        instances: the hosts.
        overlays: whether this machine allows overlays.
        own_network: whether instances have a network of the job's own; else they have the machine's.
        control: port of the coordinator, at the bridge.
        keep_ids: whether programs in a user namespace have the ids of their user; else they are root there.
    """

    user_namespace: bool
    outward: bool
    own_resolver: bool
    gateway: str
    visible: tuple[str, ...]
    files: str
    instances: tuple[Instance, ...]
    overlays: bool = False
    own_network: bool = True
    control: int = 0
    keep_ids: bool = False

    def instance(self, name: str) -> Instance:
        """Returns the host of that name. Raises KeyError."""
        for instance in self.instances:
            if instance.name == name:
                return instance
        raise KeyError(name)

    def write(self, path: Path) -> None:
        """Writes it as JSON."""
        instances = [each._asdict() | {"views": [view._asdict() for view in each.views]} for each in self.instances]
        data = self._asdict() | {"instances": instances}
        path.write_text(json.dumps(data, indent=1))

    @classmethod
    def read(cls, path: Path) -> Layout:
        """Reads what `write` wrote. Raises OSError or ValueError."""
        data = json.loads(path.read_text())
        instances = tuple(
            Instance(**{**each, "views": tuple(View(**view) for view in each["views"])})
            for each in data.pop("instances")
        )
        return cls(**{**data, "visible": tuple(data["visible"])}, instances=instances)


def choose_network(routes: str) -> str:
    """Returns the first two numbers of a network that the machine has no route into.

    Args:
        routes: content of /proc/net/route.

    >>> choose_network("Iface Destination Gateway Flags RefCnt Use Metric Mask\\neth0 00004D0A 0 1 0 0 0 0000FFFF")
    '10.177'
    """
    import ipaddress  # slow to import, and of no use in an instance

    taken = []
    for line in routes.splitlines()[1:]:
        fields = line.split()
        address, mask = (int.from_bytes(bytes.fromhex(fields[place]), "little") for place in (1, 7))
        if mask:
            taken.append(ipaddress.IPv4Network((address, mask.bit_count()), strict=False))
    for prefix in CANDIDATES:
        if not any(route.overlaps(ipaddress.IPv4Network(f"{prefix}.0.0/{BITS}")) for route in taken):
            return prefix
    return CANDIDATES[0]  # the machine's routes cover all of them; instances then do not reach one of its networks


def has_default_route(routes: str) -> bool:
    """Whether the machine reaches other networks, by the content of /proc/net/route."""
    rows = (line.split() for line in routes.splitlines()[1:])
    return any(row[1] == "00000000" and row[7] == "00000000" for row in rows)


def address_of(prefix: str, number: int) -> str:
    """Returns the address of algo-`number`.

    >>> address_of("10.77", 7), address_of("10.77", 300)
    ('10.77.0.7', '10.77.1.44')
    """
    return f"{prefix}.{number >> 8}.{number & 255}"


def gateway_of(prefix: str) -> str:
    """Returns the address of the bridge."""
    return f"{prefix}.255.254"


def hosts_text(instances: Iterable[Instance], outward: bool) -> str:
    """Returns /etc/hosts of every instance."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{instance.address} {instance.name}" for instance in instances]
    if outward:
        lines.append(f"{MACHINE_ADDRESS} {MACHINE_NAME}")
    return "\n".join(lines) + "\n"


def shared_hosts_text(instances: Sequence[Instance], machine: str) -> str:
    """Returns /etc/hosts of every instance that has the machine's network: the machine's own, after the instances.

    The instances come first, because the first name of an address counts: Debian gives 127.0.1.1 the machine's name.

    Args:
        instances: the hosts.
        machine: the machine's own /etc/hosts.

    >>> print(shared_hosts_text([Instance("algo-1", "127.0.1.1", "")], "127.0.0.1 localhost\\n10.0.0.5 algo-1"), end="")
    127.0.1.1 algo-1
    127.0.0.1 localhost
    """
    names = {instance.name for instance in instances}
    kept = (line for line in machine.splitlines() if not names.intersection(line.split("#")[0].split()))
    return "\n".join([*(f"{instance.address} {instance.name}" for instance in instances), *kept]) + "\n"


def name_servers(resolver: str) -> list[str]:
    """Returns the name servers of a resolv.conf that are not on the machine's own loopback. IPv4."""
    rows = (line.split() for line in resolver.splitlines())
    servers = [row[1] for row in rows if len(row) > 1 and row[0] == "nameserver"]
    return [server for server in servers if not server.startswith("127.") and ":" not in server]


def resolver_text(machine: str, outward: bool) -> str:
    """Returns /etc/resolv.conf of every instance.

    A name server on the machine's loopback is not the instance's: it is asked through the way out.

    Args:
        machine: the machine's own.
        outward: whether there is a way out; without one no name server can be reached.
    """
    if not outward:
        return ""
    kept = [line for line in machine.splitlines() if not line.startswith("nameserver")]
    servers = name_servers(machine) or [DNS_ADDRESS]
    return "\n".join([*kept, *(f"nameserver {server}" for server in servers)]) + "\n"


def shown_below_tmp(paths: Sequence[str]) -> tuple[str, ...]:
    """Returns which paths below /tmp instances must see, outermost first and without those inside others.

    A path that does not exist stands for its directory, because a program may be about to make it. One that may not be
    looked at (another user's, a name that is too long, links in a circle) is nothing that a program could open either.
    """
    wanted: set[Path] = set()
    for text in paths:
        if not text.startswith("/"):
            continue
        for path in (Path(text), Path(os.path.realpath(text))):
            place = path if os.path.exists(path) else path.parent
            if place.is_relative_to("/tmp") and place != Path("/tmp") and os.path.exists(place):
                wanted.add(place)
    return tuple(str(path) for path in sorted(wanted) if not any(parent in wanted for parent in path.parents))

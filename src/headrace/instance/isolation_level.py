"""How the hosts of one machine are kept apart: the level of isolation, a part of the launch plan. Pure."""

from __future__ import annotations

import ipaddress

import msgspec

NAMESPACE = "namespace"
SHARED_NETWORK = "shared_network"
NO_ISOLATION = "none"
BY_NODE = "auto"


class Isolation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the hosts of one machine are kept apart.

    Attributes:
        level: ``none``: they share the machine's files, processes and network; ``shared_network``: its network only;
            ``namespace``: nothing; ``auto``: every machine takes the best that works there.
        why: why this level, in words.
        outward: whether they reach other machines than the job's hosts.
        why_not_outward: why not; empty if they do.
        shared_code: whether each sees the run's one snapshot of the code, and has only what it changes for itself.
    """

    level: str = NO_ISOLATION
    why: str = ""
    outward: bool = True
    why_not_outward: str = ""
    shared_code: bool = False

    @property
    def own_files(self) -> bool:
        """Whether every host has its own /opt/ml, /tmp, name, processes, and the hosts' names in its /etc/hosts."""
        return self.level in {SHARED_NETWORK, NAMESPACE}

    @property
    def own_network(self) -> bool:
        """Whether every host has a network of its own: its addresses, its ports, and a limit of its bandwidth."""
        return self.level == NAMESPACE

    def words(self) -> str:
        """Returns in one line how hosts are isolated, why, and what they cannot reach.

        >>> Isolation("none", "engines.local.isolation says so").words()
        'isolation: none (engines.local.isolation says so)'
        """
        why = f" ({self.why})" if self.why else ""
        alone = "" if self.outward else f"; hosts reach only each other: {self.why_not_outward}"
        return f"isolation: {self.level}{why}{alone}"


def is_loopback(address: str) -> bool:
    """Tells whether a host is a loopback address of a machine, which it then shares with others; False for a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name, as on SageMaker
        return False

"""Which isolation a job gets on this machine."""

from __future__ import annotations

from headrace.errors import EngineRefused
from headrace.hosting.isolation import network_layout, probing
from headrace.instance.launch_plan import NAMESPACE, NO_ISOLATION, SHARED_NETWORK, Isolation

MACHINE_NAME = network_layout.MACHINE_NAME
SAYS_SO = "engines.local.isolation says so"


def choose(wanted: str, *, bandwidth: bool = False) -> Isolation:
    """Returns the isolation that a job gets.

    Args:
        wanted: ``auto``, or a level.
        bandwidth: whether it limits the bandwidth of hosts.

    Raises:
        EngineRefused: it wants what only namespaces give, and they do not work here.
    """
    chosen = _choose(wanted)
    if bandwidth and chosen.level != NAMESPACE:
        raise EngineRefused(
            f"engines.local.network: bandwidth holds with isolation by namespaces only: {chosen.why}",
            hint="leave out engines.local.network, or see `headrace doctor`",
        )
    return chosen


def _choose(wanted: str) -> Isolation:
    if wanted == NO_ISOLATION:
        return Isolation(NO_ISOLATION, SAYS_SO)
    found = probing.examine()
    why_not = {NAMESPACE: found.namespace, SHARED_NETWORK: found.shared_network}.get(wanted, "")
    if why_not:
        raise EngineRefused(
            f"isolation by namespaces does not work here: {why_not}",
            hint="set engines.local.isolation to none or auto; `headrace doctor` says what that means",
        )
    if wanted == NAMESPACE:
        return Isolation(NAMESPACE, SAYS_SO, not found.outward, found.outward)
    if wanted == SHARED_NETWORK:
        return Isolation(SHARED_NETWORK, SAYS_SO)
    if found.shared_network:
        return Isolation(NO_ISOLATION, f"namespaces do not work here: {found.shared_network}")
    if found.namespace:
        return Isolation(SHARED_NETWORK, f"hosts cannot have a network of their own here: {found.namespace}")
    if found.outward and found.connected:
        why = f"in a network of their own, hosts would not reach other machines: {found.outward}"
        return Isolation(SHARED_NETWORK, why)
    return Isolation(NAMESPACE, "namespaces work here", not found.outward, found.outward)


def found_here() -> probing.Findings:
    """Returns what this machine allows, tried anew; see `probing.examine`."""
    probing.forget()
    return probing.examine()

"""Which isolation a job gets on this machine, and the layout of that isolation, which is written into the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.catalog.instance_types import parse_bandwidth
from headrace.engines.local.checked_job import CheckedJob
from headrace.engines.planning.engine_job import named_paths
from headrace.engines.planning.plan_channels import stage_order
from headrace.errors import EngineRefused
from headrace.hosting.isolation import network_layout, probing, syscalls
from headrace.hosting.isolation.needed_paths import needed_paths
from headrace.hosting.isolation.network_layout import View
from headrace.hosting.isolation.probing import examine
from headrace.hosting.supervision.cleanup import LINKS, VIEWS, channel_area, code_work
from headrace.instance.channels import channel_links, download
from headrace.instance.channels.stage_orders import FAST_FILE, ChannelOrder
from headrace.instance.launch_plan import NAMESPACE, NO_ISOLATION, SHARED_NETWORK, Isolation, LaunchPlan
from headrace.instance.tree import shares_blocks
from headrace.runs import RunPaths

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


SHARED_BLOCKS = 2048  # of 512 bytes: code that takes less is copied for every host


def arrange(checked: CheckedJob, paths: RunPaths) -> LaunchPlan:
    """Writes what the supervisor needs to isolate the instances of a run, whose code is there. Raises OSError.

    Returns:
        The plan, which says whether the instances share the snapshot of the code.
    """
    job, plan = checked.job, checked.plan
    overlays = not examine().overlay
    shared = overlays and not shares_blocks(paths.root) and _is_large(paths.code)
    folder = paths.engine
    folder.mkdir(exist_ok=True)
    redirect_links(checked.orders, paths)
    network = job.local.network
    rates = {group: parse_bandwidth(options.bandwidth) for group, options in network.items()}
    checkpoints = "" if job.checkpoint_local_path.startswith("/opt/ml/") else job.checkpoint_local_path
    instances = tuple(
        network_layout.Instance(
            name=host.name,
            address=host.address,
            tree=str(paths.host(host.name)),
            bandwidth=rates.get(host.group, 0),
            checkpoints=checkpoints,
            views=views_of(plan, checked.orders, paths, host.name),
            code=str(paths.code) if shared else "",
            code_work=str(code_work(paths, host.name)) if shared else "",
        )
        for host in plan.hosts
    )
    own_network = plan.isolation.own_network
    outward = own_network and plan.isolation.outward
    gateway = network_layout.gateway_of(".".join(plan.hosts[0].address.split(".")[:2])) if own_network else ""
    visible = network_layout.shown_below_tmp([*needed_paths(plan, paths.root), *named_paths(job, plan)])
    resolver = _machines(network_layout.RESOLVER)
    made = network_layout.Layout(
        user_namespace=not syscalls.may_separate(),
        outward=outward,
        own_resolver=not network_layout.name_servers(resolver),
        gateway=gateway,
        visible=visible,
        files=str(folder),
        instances=instances,
        overlays=overlays,
        own_network=own_network,
        control=plan.ports.control,
    )
    made.write(folder / network_layout.FILE)
    if own_network:
        hosts = network_layout.hosts_text(instances, outward)
        (folder / "resolv.conf").write_text(network_layout.resolver_text(resolver, outward), encoding="utf-8")
    else:
        hosts = network_layout.shared_hosts_text(instances, _machines(network_layout.HOSTS))
    (folder / "hosts").write_text(hosts, encoding="utf-8")
    isolation = msgspec.structs.replace(plan.isolation, shared_code=shared)
    return msgspec.structs.replace(plan, isolation=isolation, coordinator=gateway)


def _is_large(folder: Path) -> bool:
    blocks = 0
    for here, _, names in os.walk(folder):
        for name in names:
            blocks += os.lstat(f"{here}/{name}").st_blocks
            if blocks >= SHARED_BLOCKS:
                return True
    return False


def _machines(file: str) -> str:
    """Returns what a file of this machine says; empty if it does not exist."""
    path = Path(file)
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def views_of(plan: LaunchPlan, orders: Sequence[ChannelOrder], paths: RunPaths, host: str) -> tuple[View, ...]:
    """Returns what an isolated host sees of its channels."""
    area = channel_area(paths)
    found = []
    for order in orders:
        if host not in order.hosts or order.is_piped or order.is_mounted:
            continue
        own = "" if order.input_mode == FAST_FILE else str(area / VIEWS / host / order.name)
        if order.is_link:
            links = area / LINKS / order.name
            found.append(View(order.name, order.uri, own, str(links) if links.is_dir() else ""))
            continue
        staged = stage_order(plan, orders, paths).area(order.name)
        share = staged / download.DATA / str(order.place(host))
        found.append(View(order.name, str(share), own, root_file=str(staged / channel_links.ROOT)))
    return tuple(found)


def redirect_links(orders: Sequence[ChannelOrder], paths: RunPaths) -> None:
    """Mends the links in channels that are folders of this machine, for views of them. Raises OSError."""
    for order in orders:
        if order.is_link:
            channel_links.redirect(os.path.realpath(order.uri), channel_area(paths) / LINKS / order.name)

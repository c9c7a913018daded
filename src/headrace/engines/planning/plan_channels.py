"""The channels of a job: which are links, which are staged or served, and whether their data exist.

A channel that is a folder of this machine is a link in the tree of every host that has it, and no process is needed.
All others are made by the helpers `stage` and `serve_channels`, see `headrace.instance.channels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.errors import EngineRefused, HeadraceError
from headrace.hosting.supervision.cleanup import FOLDER
from headrace.instance import Channel
from headrace.instance.channels import mounts, object_listing
from headrace.instance.channels.download import named
from headrace.instance.channels.stage_orders import NONE, S3_PREFIX, ChannelOrder, StageOrder, write_orders
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.paths import DEFAULT_BASE
from headrace.instance.s3 import AS_ENVIRONMENT, S3Access
from headrace.instance.storage import Store
from headrace.job import Job
from headrace.runs import RunPaths

CHECK_SECONDS = 5.0  # for one answer of an object store before a run is made
CHECK_ATTEMPTS = 2


def order_of(job: Job, name: str) -> ChannelOrder:
    """Returns a channel of a job as an order."""
    channel = job.inputs[name]
    hosts = tuple(host for group, hosts in job.hosts.items() if name in job.channels_of(group) for host in hosts)
    return ChannelOrder(
        name=name,
        uri=channel.s3_data if channel.is_remote else str(channel.local_path(job.base_path).absolute()),
        hosts=hosts,
        data_type=channel.s3_data_type,
        distribution=channel.distribution,
        input_mode=job.input_mode_of(name),
        compression=channel.compression or NONE,
        record_wrapping=channel.record_wrapping or NONE,
        seed=channel.shuffle_config.seed if channel.shuffle_config else None,
        attributes=tuple(channel.attribute_names),
    )


def orders_of(job: Job) -> tuple[ChannelOrder, ...]:
    """Returns all channels of a job as orders."""
    return tuple(order_of(job, name) for name in job.inputs)


def tree_channels(job: Job, orders: Sequence[ChannelOrder], host: str, isolated: bool = False) -> dict[str, Channel]:
    """Returns the channels of a host as its tree shows them; what is not only a link is filled in, or shown, later.

    Args:
        job: the job.
        orders: its channels.
        host: name of the host.
        isolated: whether it has views of its own of them.
    """
    return {
        order.name: Channel(
            source=Path(order.uri) if order.is_link and not isolated else None,
            content_type=job.inputs[order.name].content_type,
            input_mode=order.input_mode,
            distribution=order.distribution,
            record_wrapping=order.record_wrapping,
            compression=order.compression,
        )
        for order in orders
        if host in order.hosts
    }


def stage_order(plan: LaunchPlan, orders: Sequence[ChannelOrder], paths: RunPaths) -> StageOrder:
    """Returns what is staged and served; see `prepare_channels`."""
    root = paths.root.resolve()
    bases = {host.name: str(root / paths.host(host.name).relative_to(paths.root)) for host in plan.hosts}
    staged = tuple(order for order in orders if not order.is_link)
    # Where hosts have trees of their own; on Slurm, an isolated host sees the channels of its tree in the run.
    views = plan.isolation.own_files and all(host.base_dir == DEFAULT_BASE for host in plan.hosts)
    return StageOrder(paths.id, str(root / FOLDER), bases, staged, views)


def prepare_channels(plan: LaunchPlan, orders: Sequence[ChannelOrder], paths: RunPaths) -> None:
    """Writes what is staged and served, for all hosts; nothing when every channel is only a link.

    Args:
        plan: the launch plan.
        orders: all channels of the job.
        paths: the run's directory.

    Raises:
        OSError: they cannot be written.
    """
    order = stage_order(plan, orders, paths)
    if order.channels:
        write_orders(order, paths.root)


def check_mounts(orders: Sequence[ChannelOrder]) -> None:
    """Checks that FastFile channels can be mounted. Starts nothing and contacts no server.

    Raises:
        EngineRefused: they cannot, with what to install.
    """
    mounted = [order.name for order in orders if order.is_mounted]
    why, hint = mounts.why_not() if mounted else ("", "")
    if why:
        names = ", ".join(repr(name) for name in mounted)
        raise EngineRefused(
            f"FastFile channels need a FUSE mount, which is not possible here: {why} (channel {names})",
            hint=f"{hint}; or use input_mode: File",
        )


def check_channels(orders: Sequence[ChannelOrder], access: S3Access = AS_ENVIRONMENT) -> None:
    """Checks that the data of every channel are there: one question for each, answered soon or not at all.

    Args:
        orders: the channels.
        access: how S3 is reached.

    Raises:
        EngineRefused: nothing is there, or it cannot be asked for.
    """
    staged = [order for order in orders if not order.is_link]
    if not staged:
        return
    with Store(timeout=CHECK_SECONDS, attempts=CHECK_ATTEMPTS, access=access) as store:
        for order in staged:
            try:
                _check(order, store)
            except HeadraceError as error:
                about = named(order.name, error)
                raise EngineRefused(about.message, hint=about.hint) from error


def _check(order: ChannelOrder, store: Store) -> None:
    if order.data_type != S3_PREFIX:
        store.look(order.uri)
    elif order.is_s3:
        if store.first(order.uri) is None:
            raise object_listing.empty(order)
    else:
        object_listing.list_items(order, store)

"""Writes feed.json: where the data workers are, as the training processes of this host reach them."""

from __future__ import annotations

import msgspec

from headrace.agent.control.control_messages import Orders
from headrace.agent.program_specs import feed_socket
from headrace.instance.launch_plan import FEED_NAME, SECRET_NAME, FeedHosts, LaunchPlan, channel_dir, write_atomically


def feed_hosts_for(plan: LaunchPlan, host: str, orders: Orders, secret: bytes) -> FeedHosts:
    """Returns the content of a host's feed.json: the coordinator's list, its own feed server by its Unix socket.

    Args:
        plan: the launch plan.
        host: the host whose programs will read it.
        orders: the coordinator's.
        secret: the job's secret.
    """
    own = f"unix:{feed_socket(plan, host, secret)}"
    return FeedHosts(
        generation=orders.feed_generation,
        secret_file=str(channel_dir(plan.host(host).base_dir) / SECRET_NAME),
        hosts=tuple(msgspec.structs.replace(each, address=own) if each.host == host else each for each in orders.feed),
    )


def write_feed_file(plan: LaunchPlan, host: str, orders: Orders, secret: bytes) -> None:
    """Rewrites a host's feed.json. Raises OSError."""
    path = channel_dir(plan.host(host).base_dir) / FEED_NAME
    write_atomically(path, msgspec.json.format(msgspec.json.encode(feed_hosts_for(plan, host, orders, secret))))

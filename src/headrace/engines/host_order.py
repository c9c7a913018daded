"""What the main process of a host is told, and how it makes its host ready: the same on every platform.

engine/host_order.json    in the run's directory on the host; written by whoever submits the run

Libraries of the instance side only.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from headrace.control_group import memory_limit, usable_cores
from headrace.errors import UsageError
from headrace.hosting.inputs.host_facts import with_data_workers, with_memory, with_pythons
from headrace.hosting.inputs.requirements import DEFAULT, environment_of, prepare_install
from headrace.hosting.inputs.source_code import bring_code
from headrace.instance.channels.channel_links import link
from headrace.instance.launch_plan import NO_ISOLATION, LaunchPlan, plan_text, write_plan, write_secret
from headrace.instance.paths import TreePaths
from headrace.instance.tree import copy_code
from headrace.private_folders import write_atomically
from headrace.runs import RunPaths

ORDER = "host_order.json"  # below the run's engine directory


class HostOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """See the module. Platforms use what they need of it.

    Attributes:
        source: ``s3://`` archive of the code, which the host fetches; empty when it has travelled with the job.
        links: channels that are folders of a volume, with their paths.
        ranks: groups with the ranks of a host, whose data workers are as many as these leave CPUs.
        requirements: file of requirements inside the code, by group; without one the default, if it is there.
        hyperparameters: what groups have of their own, over the job's, as texts of hyperparameters.json, by group.
        attempt: number of the run's attempt with which the hosts begin.
        spot: the platform may take the hosts away, and start the job anew.
        linger: seconds to wait at the end until the record is fetched; 0 for none.
        kept: record and output are stored elsewhere, so that nobody need be waited for.
        named: the network has other names for hosts: their own are written into /etc/hosts, if that may be done.
        quiet: the host's main ends with code 0 whatever became of it: its failure is none of what it belongs to.
        launcher: words before the agent's command line.
        python: interpreter of the agents.
        step_options: of the program that starts them, by group.
        share_nodes: other jobs may run on the hosts' machines, so this one takes ports of its own.
        isolation: level that is wanted there.
        jobs: Jobs of Kubernetes that make the pods of hosts that come and go, by host; for the leader's host alone.
        named_paths: paths that the job names, which hosts with a /tmp of their own must see all the same.
    """

    source: str = ""
    links: dict[str, str] = {}
    ranks: dict[str, int] = {}
    requirements: dict[str, str] = {}
    hyperparameters: dict[str, dict[str, str]] = {}
    attempt: int = 1
    spot: bool = False
    linger: float = 0.0
    kept: bool = False
    named: bool = False
    quiet: bool = False
    launcher: tuple[str, ...] = ()
    python: str = ""
    step_options: dict[str, tuple[str, ...]] = {}
    share_nodes: bool = False
    isolation: str = NO_ISOLATION
    jobs: dict[str, str] = {}
    named_paths: tuple[str, ...] = ()


def order_text(order: HostOrder) -> bytes:
    """Returns the order as its file has it."""
    return msgspec.json.format(msgspec.json.encode(order)) + b"\n"


def write_host_order(paths: RunPaths, order: HostOrder) -> None:
    """Writes the order. Raises OSError."""
    paths.engine.mkdir(exist_ok=True)
    write_atomically(paths.engine / ORDER, order_text(order))


def read_host_order(paths: RunPaths) -> HostOrder:
    """Reads the order. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode((paths.engine / ORDER).read_bytes(), type=HostOrder)


def make_host_ready(
    paths: RunPaths, plan: LaunchPlan, name: str, order: HostOrder, tree: TreePaths, secret: str
) -> LaunchPlan:
    """Fills in what only a host with a file system of its own knows, and writes the plan as its agent gets it.

    Args:
        paths: the run's directory; its code is there, unless the order names a source.
        plan: the launch plan as it was submitted.
        name: of the host.
        order: what is to be done.
        tree: the host's.
        secret: the job's.

    Returns:
        The plan.

    Raises:
        HeadraceError, OSError, ValueError: the host cannot be made ready.
    """
    host = plan.host(name)
    if order.source:
        bring_code(order.source, Path("/"), (), paths.code, leave_out=paths.root, archive=True)
    copy_code(paths.code, tree.code)
    for channel, folder in order.links.items():
        _link(tree, channel, Path(folder))
    own = order.hyperparameters.get(host.group)
    if own:  # over those of the job, which the platform has written
        texts = {**json.loads(tree.hyperparameters.read_bytes()), **own}
        write_atomically(tree.hyperparameters, json.dumps(texts).encode())
    ranks = {group: count for group, count in order.ranks.items() if group == host.group}
    plan = with_data_workers(plan, {host.group: usable_cores()}, ranks)
    plan = with_memory(plan, name, memory_limit())
    requirements = order.requirements.get(host.group) or (DEFAULT if (paths.code / DEFAULT).is_file() else "")
    if requirements:
        environment = environment_of(requirements, paths, (host.group,), variables=plan.environment_of(host.group))
        prepare_install({host.group: environment}, paths)
        plan = with_pythons(plan, {host.group: environment.python})
    text = plan_text(plan)
    write_atomically(paths.plan, text.encode())
    write_plan(text, tree.base)
    write_secret(secret, tree.base)
    return plan


def _link(tree: TreePaths, channel: str, folder: Path) -> None:
    if not folder.exists():
        raise UsageError(f"channel {channel!r}: {folder} does not exist in the pod", "is the volume the right one?")
    if folder.is_dir():
        link(tree.channel(channel), folder)
        return
    tree.channel(channel).mkdir(exist_ok=True)
    link(tree.channel(channel) / folder.name, folder)

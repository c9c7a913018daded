"""The orders for the helpers of one host, from those that were prepared for all hosts of a run.

A run on several machines is prepared once, where it is submitted; every machine gets the same files. What is in them
for other hosts is taken out there, before the first helper starts. Doing it again changes nothing.
"""

from __future__ import annotations

import msgspec

from headrace.hosting.helpers.artefacts import COLLECT, RESTORE, SYNC, read_plan
from headrace.hosting.helpers.store_record import NAME as STORE_RECORD
from headrace.hosting.inputs.requirements import INSTALL, VirtualEnvironment
from headrace.instance.channels.stage_orders import SERVE, STAGE, order_path, read_order
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import RunPaths


def keep_own_orders(plan: LaunchPlan, paths: RunPaths, host: str) -> None:
    """Leaves in the run's directory on a machine the orders of one host. The leader's also collects and stores.

    Args:
        plan: the launch plan.
        paths: the run's directory on this machine.
        host: the host of this machine.

    Raises:
        OSError, msgspec.DecodeError: an order cannot be read or written.
    """
    for name in (STAGE, SERVE):
        _own_channels(paths, name, host)
    for name in (RESTORE, SYNC):
        if _is_there(paths, name):
            artefacts = read_plan(paths, name)
            own = tuple(each for each in artefacts.hosts if each.name == host)
            _write(paths, name, msgspec.structs.replace(artefacts, hosts=own, part=host))
    if _is_there(paths, INSTALL):
        wanted = msgspec.json.decode(_path(paths, INSTALL), type=list[VirtualEnvironment])
        own_group = plan.host(host).group
        own_wanted = [each for each in wanted if own_group in each.groups]
        _write(paths, INSTALL, own_wanted) if own_wanted else _remove(paths, INSTALL)
    if host != plan.leader:
        _remove(paths, COLLECT)
        _remove(paths, STORE_RECORD)


def _own_channels(paths: RunPaths, name: str, host: str) -> None:
    if not order_path(paths.root, name).is_file():
        return
    order = read_order(paths.root, name)
    channels = tuple(channel for channel in order.channels if host in channel.hosts)
    bases = {each: base for each, base in order.bases.items() if each == host}
    if channels:
        _write(paths, name, msgspec.structs.replace(order, bases=bases, channels=channels))
    else:
        _remove(paths, name)


def _is_there(paths: RunPaths, name: str) -> bool:
    return (paths.engine / f"{name}.json").is_file()


def _path(paths: RunPaths, name: str) -> bytes:
    return (paths.engine / f"{name}.json").read_bytes()


def _write(paths: RunPaths, name: str, order: object) -> None:
    (paths.engine / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(order)) + b"\n")


def _remove(paths: RunPaths, name: str) -> None:
    (paths.engine / f"{name}.json").unlink(missing_ok=True)

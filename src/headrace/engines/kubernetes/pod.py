"""The main process of a pod: makes its host ready, then is the host's supervisor, and has the last word.

    python -m headrace.engines.kubernetes.pod RUN_DIR HOST WORD

`unpack_package` starts it when the run's directory and /opt/ml are in place. It fills in what only the host knows:
channels that are folders of a volume, code in S3, how many data workers fill its CPUs, its memory, its network
interface, the environments of its requirements. Whatever then happens, its last word comes to lie in the file WORD,
which is the container's termination message, and the leader's pod waits until the record of the run has been fetched
from it.

A pod that the platform ends, and that another one may replace, says no last word: the run goes on.

Exit code: that of `supervise_host`; `REPLACED` of a pod that is to be replaced. Libraries of the instance side only.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from headrace.engines.kubernetes.host_names import name_hosts
from headrace.engines.kubernetes.pod_order import PodOrder, read_pod_order
from headrace.engines.kubernetes.pod_words import ASKED, FETCHED, LastWord, write_last_word
from headrace.errors import HeadraceError, UsageError
from headrace.feed.worker.usable_cores import usable_cores
from headrace.hosting.helpers.store_record import NAME as STORE_RECORD
from headrace.hosting.inputs.host_facts import (
    interface_of,
    name_interface,
    with_data_workers,
    with_memory,
    with_pythons,
)
from headrace.hosting.inputs.requirements import DEFAULT, environment_of, prepare_install
from headrace.hosting.inputs.source_code import bring_code
from headrace.hosting.supervision.helper_processes import is_wanted
from headrace.hosting.supervision.one_host import PLAIN_HOSTS, supervise_host
from headrace.hosting.supervision.supervisor import ENGINE
from headrace.instance.channels.channel_links import link
from headrace.instance.code_copy import copy_code
from headrace.instance.launch_plan import (
    SECRET_NAME,
    HostPlan,
    LaunchPlan,
    channel_dir,
    plan_text,
    write_atomically,
    write_plan,
)
from headrace.instance.paths import TreePaths
from headrace.log_setup import VARIABLE, log_to_stderr
from headrace.processes.own_group import memory_limit
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, read_plan
from headrace.runs.events import RunFinished

_log = logging.getLogger("headrace.engines.kubernetes.pod")  # this module runs as __main__

POLL = 0.2
REPLACED = 75  # EX_TEMPFAIL: the Job makes another pod after it (see `objects.FAILED`)


class PodEnded(HeadraceError):
    """The platform ends the pod before its host has begun."""


def main() -> int:
    """Entry point. Returns the exit code."""
    root, name, word_file = sys.argv[1:]
    paths = RunPaths(Path(root))
    log_to_stderr(os.environ.get(VARIABLE, ""))  # the pod's log
    signal.signal(signal.SIGTERM, _ended)  # process 1 would ignore it
    order = PodOrder()
    replaced = False
    try:
        order = read_pod_order(paths)
        plan = read_plan(paths, LaunchPlan)
        replaced = _may_be_replaced(paths, plan, name)
        make_ready(paths, plan, plan.host(name), order)
        status = supervise_host(paths, name, PLAIN_HOSTS)
        if status is Status.IN_PROGRESS:
            return REPLACED
        word = last_word(paths, status, name == plan.leader)
    except (HeadraceError, OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        if isinstance(error, PodEnded) and replaced:
            return REPLACED
        kind = CauseKind.HOST_LOST if isinstance(error, PodEnded) else CauseKind.INSTANCE_NOT_STARTED
        cause = Cause(kind, str(error), host=name, infrastructure=True)
        _log.error("%s", error)
        word = LastWord(Status.FAILED, cause, str(cause))
        if order.linger:  # the leader: its record is that of the run
            with EventWriter(paths.events(ENGINE)) as events:
                events.write(RunFinished(t=time.time(), status=word.status, cause=cause, failure_reason=word.reason))
    write_last_word(paths, word, Path(word_file))
    if order.linger and not (order.kept and _is_stored(paths)):
        await_fetched(paths, order.linger)
    return 0 if word.status is Status.COMPLETED or order.quiet else 1


def _may_be_replaced(paths: RunPaths, plan: LaunchPlan, host: str) -> bool:
    """Returns whether the run may go on with another pod of a host: the leader's needs the record that is stored."""
    return plan.retry.attempts > 0 and (host != plan.leader or is_wanted(paths, STORE_RECORD))


def _ended(*_: object) -> None:
    raise PodEnded("Kubernetes ended the pod before its host had begun")


def make_ready(paths: RunPaths, plan: LaunchPlan, host: HostPlan, order: PodOrder) -> None:
    """Fills in what only this host knows, and writes the plan as its agent gets it.

    Args:
        paths: the run's directory.
        plan: the plan as it was submitted.
        host: this host.
        order: what else is to be done.

    Raises:
        HeadraceError, OSError: the host cannot be made ready.
    """
    tree = TreePaths(host.base_dir)
    if order.source:
        bring_code(order.source, Path("/"), (), paths.code, leave_out=paths.root, archive=True)
    copy_code(paths.code, tree.code)
    for channel, folder in order.links.items():
        _link(tree, channel, Path(folder))
    plan = with_data_workers(plan, {host.group: usable_cores()}, order.ranks)
    plan = with_memory(plan, host.name, memory_limit())
    requirements = order.requirements or (DEFAULT if (paths.code / DEFAULT).is_file() else "")
    if requirements:
        environment = environment_of(requirements, paths, (host.group,), variables=plan.environment_of(host.group))
        prepare_install({host.group: environment}, paths)
        plan = with_pythons(plan, {host.group: environment.python})
    write_atomically(paths.plan, plan_text(plan).encode())
    write_plan(plan, host.base_dir, (channel_dir(host.base_dir) / SECRET_NAME).read_text())
    name_interface(host.base_dir, _own_interface(host))
    if order.named:
        name_hosts(plan)


def _link(tree: TreePaths, channel: str, folder: Path) -> None:
    if not folder.exists():
        raise UsageError(f"channel {channel!r}: {folder} does not exist in the pod", "is the volume the right one?")
    if folder.is_dir():
        link(tree.channel(channel), folder)
        return
    tree.channel(channel).mkdir(exist_ok=True)
    link(tree.channel(channel) / folder.name, folder)


def _own_interface(host: HostPlan) -> str:
    """Returns the interface of this host's address. Raises UsageError, OSError."""
    address = socket.gethostbyname(host.address)
    interface = interface_of(address)
    if not interface:
        raise UsageError(f"this pod has no interface with the address of {host.name}, {address}")
    return interface


def last_word(paths: RunPaths, status: Status, leads: bool) -> LastWord:
    """Returns how the host ended: on the leader's, how the run did. Raises OSError."""
    if not leads:
        return LastWord(status)
    state = Run(paths).state()
    return LastWord(status, state.cause, state.failure_reason)


def _is_stored(paths: RunPaths) -> bool:
    return not Run(paths).state().record_not_stored


def await_fetched(paths: RunPaths, seconds: float) -> None:
    """Waits until the record has been fetched, or nobody has fetched any of it for a time, or the pod is ended."""
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))
    asked, deadline = _asked(paths), time.monotonic() + seconds
    while not over and time.monotonic() < deadline and not (paths.engine / FETCHED).exists():
        time.sleep(POLL)
        if asked != (asked := _asked(paths)):  # somebody fetches, however slowly
            deadline = time.monotonic() + seconds


def _asked(paths: RunPaths) -> int:
    """Returns when somebody has fetched something, in nanoseconds since the epoch; 0 if nobody has."""
    try:
        return (paths.engine / ASKED).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed; taking gRPC apart takes long

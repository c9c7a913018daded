"""The first process of a container on SageMaker: makes its host ready, then is the host's supervisor.

    python -m headrace.engines.sagemaker.container_host RUN_DIR CHANNEL SECRETS

`host_start` starts it when the run's directory is in place. The contract is read here, and not written: the
service has written resourceconfig.json and the others, has filled the channels, and takes /opt/ml/model and
/opt/ml/output when all containers have ended. Only headrace's own files are added, in the tree's folder for them.

A plan is made before there are instances. Which host is in which group only the service says, in resourceconfig.json:
its hosts are in no order there, and algo-1 may be in any group.

Where that folder belongs to another headrace already, which plays the instance (`headrace serve`), the tree of this
host is one of links, and the ports of the other one are left to it.

Exit code: of the leader's container 0 when the run is Completed, else 1 with the reason in output/failure. Of every
other one 0, however its host has ended: the leader knows about it, and judges. Only a host that cannot even begin ends
with 1. SIGTERM is the service's, which stops the job in all containers at once: the leader's programs, and those of
the others by its order, get time to save.

Libraries of the instance side only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from headrace.engines.host_order import HostOrder, make_host_ready, read_host_order
from headrace.errors import FAILURE_CHARACTERS, HeadraceError, UsageError
from headrace.hosting.inputs.source_code import unpack
from headrace.hosting.machines.host_record import bring_record
from headrace.hosting.supervision.instances import StopOrders
from headrace.hosting.supervision.one_host import supervise_host
from headrace.hosting.supervision.supervisor import LINKED_TREE
from headrace.instance.launch_plan import (
    CA_NAME,
    CERTIFICATE_NAME,
    KEY_NAME,
    SECRET_NAME,
    HostPlan,
    LaunchPlan,
    Ports,
    channel_dir,
)
from headrace.instance.launch_plan import read_plan as read_plan_of_tree
from headrace.instance.lifeline import StopJob
from headrace.instance.paths import TreePaths, base_directory
from headrace.log_setup import VARIABLE, log_to_stderr
from headrace.private_folders import write_atomically
from headrace.runs import CauseKind, EventWriter, LogFollower, Run, RunPaths, Selector, Status, read_plan
from headrace.runs.events import AttemptStarted
from headrace.runs.run_paths import AGENT, ENGINE

_log = logging.getLogger("headrace.engines.sagemaker.container_host")  # this module runs as __main__

TREE = "ml"  # beside the run's directory, where another headrace has the folder in the tree
LINKED = ("code", "model", "checkpoints", "output", "input/config")


SECONDS = 0.5  # between two looks


@contextlib.contextmanager
def printed_output(paths: RunPaths, host: str) -> Iterator[None]:
    """Prints the new lines of a host's programs; behind the block, where nothing writes any more, what is left.

    What it cannot print does not end the host.

    Args:
        paths: the run's directory on this host.
        host: name of the host.
    """
    follower, closed = LogFollower(paths, Selector(host=host), lambda _: None), threading.Event()
    for _ in follower.poll(final=True):  # an earlier container has printed them
        pass

    def follow() -> None:
        final = False
        while not final:
            final = closed.wait(SECONDS)
            for line in follower.poll(final):
                if line.stream.name != AGENT:
                    print(line.text, file=sys.stderr if line.kind == "e" else sys.stdout, flush=True)

    thread = threading.Thread(target=follow, name="headrace-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


def main() -> int:
    """Entry point. Returns the exit code."""
    root, channel, secrets = map(Path, sys.argv[1:])
    paths = RunPaths(root)
    log_to_stderr(os.environ.get(VARIABLE, ""))  # into the container's log
    signal.signal(signal.SIGTERM, _ended)  # process 1 would ignore it
    service = TreePaths(base_directory())  # as the service has made it
    try:
        order = read_host_order(paths)
        config = json.loads(service.resource_config.read_bytes())
        name = str(config["current_host"])
        outer = _outer_ports(service)
        tree = TreePaths(service.base if outer is None else linked_tree(service, root.parent / TREE))
        if outer is not None:
            paths.engine.mkdir(exist_ok=True)
            (paths.engine / LINKED_TREE).touch()
        plan = placed_plan(
            after_attempts(read_plan(paths, LaunchPlan), order.attempt - 1),
            config,
            str(tree.base),
            str(paths.root),
            dict(os.environ),
            outer,
        )
        plan = make_ready(paths, plan, name, order, tree, channel, secrets)
        leads = name == plan.leader
        if leads:
            bring_record(paths)  # before the output begins: what it brings was printed
            begin_with(order.attempt, paths)
        interruptions = INTERRUPTIONS if order.spot else 0
        orders = stop_orders(leads, order.spot)
        with printed_output(paths, name):
            status = supervise_host(paths, name, orders, collected=False, interruptions=interruptions, anew=True)
    except (HeadraceError, OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        words = (
            f"{error.message}\nhint: {error.hint}" if isinstance(error, HeadraceError) and error.hint else str(error)
        )
        _log.error("%s", words)
        write_failure(service, f"headrace cannot begin on this host: {words}")
        return 1
    if not leads or status is Status.COMPLETED:
        return 0
    write_failure(service, _reason(paths))
    return 1


def begin_with(attempt: int, paths: RunPaths) -> None:
    """Writes with which attempt of its run this job begins, unless it has begun. Raises OSError."""
    if attempt > 1 and not paths.events(ENGINE).exists():
        with EventWriter(paths.events(ENGINE)) as events:
            events.write(AttemptStarted(t=time.time(), number=attempt))


def _ended(*_: object) -> None:
    _log.warning("SageMaker ended the container before its host had begun")
    sys.stdout.flush()
    os._exit(1)


def _reason(paths: RunPaths) -> str:
    state = Run(paths).state()
    return state.failure_reason or str(state.cause or state.status.value)


def write_failure(tree: TreePaths, words: str) -> None:
    """Writes output/failure, which becomes the job's FailureReason, unless somebody has: the user's words come first.

    Raises:
        OSError: it cannot be written.
    """
    if not tree.failure.exists():
        tree.output.mkdir(parents=True, exist_ok=True)
        tree.failure.write_text(words[:FAILURE_CHARACTERS], encoding="utf-8")


def stop_orders(leads: bool, spot: bool) -> StopOrders | None:
    """Returns what SIGTERM means in a container.

    Args:
        leads: it is the leader's.
        spot: the service may take the instances away and start the job anew, with what its record and checkpoints hold.
    """
    if spot:
        return None  # an infrastructure failure, after which another container goes on
    if leads:
        return {signal.SIGTERM: _stopped}
    signal.signal(signal.SIGTERM, lambda *_: _log.info("SIGTERM: the leader got it too, and stops the job"))
    return {}


def _stopped(again: bool) -> StopJob:
    words = "SageMaker has stopped the job; it alone knows whether it was asked to, or max_run was over"
    return StopJob(CauseKind.STOPPED.value, words, failed=False, grace=0.0 if again else None)


def linked_tree(service: TreePaths, base: Path) -> Path:
    """Makes a tree of links to the one that the service has made. Returns its base.

    Args:
        service: the tree of this container.
        base: where the new one goes.

    Raises:
        OSError: it cannot be made.
    """
    (base / "input" / "data").mkdir(parents=True)
    for name in LINKED:
        (service.base / name).mkdir(parents=True, exist_ok=True)
        (base / name).symlink_to(service.base / name)
    own = channel_dir(service.base).name
    for channel in service.input_data.iterdir():
        if channel.name != own:
            (base / "input" / "data" / channel.name).symlink_to(channel)
    return base


def _outer_ports(service: TreePaths) -> Ports | None:
    """Returns the ports of another headrace whose host this container is; None without one."""
    try:
        return read_plan_of_tree(service.base).ports
    except FileNotFoundError:
        return None


def make_ready(
    paths: RunPaths,
    plan: LaunchPlan,
    name: str,
    order: HostOrder,
    tree: TreePaths,
    channel: Path,
    secrets: Path,
) -> LaunchPlan:
    """Makes the host ready, from headrace's own channel. Returns the plan as its agent gets it.

    Args:
        paths, plan, name, order, tree: see `make_host_ready`; the plan has the hosts as they were assigned.
        channel: folder of headrace's own channel.
        secrets: folder with the job's secret, and the certificates of its hosts.

    Raises:
        HeadraceError, OSError: the host cannot be made ready.
    """
    if not order.source:
        unpack(channel / CODE, paths.code, "the code")
    for folder in (tree.model, tree.output_data, tree.output_intermediate, tree.checkpoints):
        folder.mkdir(parents=True, exist_ok=True)
    plan = make_host_ready(paths, plan, name, order, tree, (secrets / SECRET_NAME).read_text())
    paths.host(name).parent.mkdir(exist_ok=True)
    paths.host(name).symlink_to(tree.base)
    for file, mode in ((CA_NAME, 0o644), (CERTIFICATE_NAME, 0o644), (KEY_NAME, 0o600)):
        write_atomically(channel_dir(tree.base) / file, (secrets / name / file).read_bytes(), mode)
    return plan


_NUMBER = re.compile(r"[0-9]+")
_STEP, _MOVES = 100, 5000
CODE = "code.tar.gz"
"""Name in headrace's own channel of the archive of the code."""
INTERRUPTIONS = 1000
"""How often a job on spot instances goes on in other containers: more often than the service starts them."""


def assigned_hosts(plan: LaunchPlan, config: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Returns the hosts of every group of the plan, in the order of their numbers.

    Args:
        plan: as the job was submitted.
        config: resourceconfig.json.

    Raises:
        UsageError: the service has assigned other groups, or another number of hosts.
    """
    groups = config.get("instance_groups")
    if isinstance(groups, list) and groups:
        found = {str(each["instance_group_name"]): _sorted(each["hosts"]) for each in groups}
    else:  # a service that knows no groups
        found = {plan.groups[0].name: _sorted(config.get("hosts", ()))}
    if len(plan.groups) == len(found) == 1:  # a job without groups: the service has its own name for the one
        found = {plan.groups[0].name: next(iter(found.values()))}
    wanted = {group.name: len(group.hosts) for group in plan.groups}
    there = {name: len(hosts) for name, hosts in found.items()}
    if wanted != there:
        raise UsageError(f"resourceconfig.json has other groups than the job: {there}, not {wanted}")
    return found


def _sorted(hosts: object) -> tuple[str, ...]:
    names = [str(host) for host in hosts] if isinstance(hosts, (list, tuple)) else []
    return tuple(sorted(names, key=_order))


def _order(host: str) -> tuple[int, str]:
    numbers = _NUMBER.findall(host)
    return (int(numbers[-1]) if numbers else 0, host)


def placed_plan(
    plan: LaunchPlan,
    config: Mapping[str, object],
    base: str,
    record: str,
    variables: Mapping[str, str],
    outer: Ports | None,
) -> LaunchPlan:
    """Returns the plan as the hosts of the job have it: all of them make the same one, but for `base` and `record`.

    Args:
        plan: as the job was submitted.
        config: resourceconfig.json.
        base: this host's tree.
        record: its run directory.
        variables: of the container; they hold the job's name and ARN.
        outer: ports that another headrace has on these hosts, which play instances; None when there is none.

    Raises:
        UsageError: as `assigned_hosts`.
    """
    assigned = assigned_hosts(plan, config)
    group_of = {host: name for name, hosts in assigned.items() for host in hosts}
    hosts = tuple(
        HostPlan(name=host, group=group_of[host], address=host, base_dir=base, record_dir=record)
        for host in sorted(group_of, key=_order)
    )
    groups = tuple(msgspec.structs.replace(group, hosts=assigned[group.name]) for group in plan.groups)
    return msgspec.structs.replace(
        plan,
        hosts=hosts,
        groups=groups,
        leader=assigned[plan.completion_groups[0]][0],
        max_run=0.0,  # the service ends a job that runs for too long
        job_name=variables.get("TRAINING_JOB_NAME") or plan.job_name,
        job_arn=variables.get("TRAINING_JOB_ARN") or plan.job_arn,
        ports=plan.ports if outer is None else _beside(plan.ports, outer),
    )


def after_attempts(plan: LaunchPlan, count: int) -> LaunchPlan:
    """Returns the plan of a job before which the run had so many attempts: the job's own retries come on top."""
    retry = plan.retry
    if not retry.attempts:
        return plan
    return msgspec.structs.replace(plan, retry=msgspec.structs.replace(retry, attempts=retry.attempts + count))


def _beside(ports: Ports, taken: Ports) -> Ports:
    """Returns ports that are not taken: all of them some way behind their own, where one would be.

    Another job beside this one may have the same address. The ports that play its instances were moved out of the way
    of this one's, and so its own are.
    """
    names = Ports.__struct_fields__
    used = {getattr(taken, name) for name in names}
    moved = (taken.control - Ports().control) % _MOVES
    step = _STEP + moved if used & {getattr(ports, name) for name in names} else 0
    return Ports(**{name: getattr(ports, name) + step for name in names})


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed; taking the interpreter apart takes long

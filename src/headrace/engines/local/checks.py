"""Checks that this machine can start a job: name, ports, TensorFlow. Nothing is created here."""

from __future__ import annotations

import errno
import importlib.util
import socket
import sys
from collections.abc import Iterator

import msgspec

from headrace.engines.asking import AskEngine
from headrace.engines.planning.plan_requirements import requirements_file
from headrace.errors import EngineRefused
from headrace.instance.launch_plan import TORCH_DISTRIBUTED, LaunchPlan
from headrace.instance.tfconfig import worker_ports
from headrace.instance.tfdata import tf_data_servers
from headrace.job import Job
from headrace.runs import list_runs

_ANY = "0.0.0.0"


def check_ports(plan: LaunchPlan) -> None:
    """Checks that every port that the job needs is free.

    Raises:
        EngineRefused: with every port that is not.
    """
    if plan.isolation.own_network:  # every host has all ports for itself
        return
    wrong = [
        (address, f"{name} port {address}:{port}: {why}")
        for name, address, port in needed_ports(plan)
        if (why := _taken(address, port))
    ]
    if wrong:
        addresses = {address for address, _ in wrong}
        own = "other addresses: --set engines.local.address_prefix=127.0.2 (or other ports: engines.local.ports)"
        if _ANY in addresses:  # other addresses do not help there
            other = plan.ports.tf_data + (1000 if plan.ports.tf_data < 60000 else -1000)
            own = f"another port for tf.data.service: --set engines.local.ports.tf_data={other}"
            own += "" if addresses == {_ANY} else "; for the others, other addresses: engines.local.address_prefix"
        raise EngineRefused(
            "; ".join(text for _, text in wrong), hint=f"another job on this machine? end it, or give this one {own}"
        )


def needed_ports(plan: LaunchPlan) -> Iterator[tuple[str, str, int]]:
    """Yields what the job will listen on: name of the port, address, number."""
    yield "control", plan.host(plan.leader).address, plan.ports.control
    for host in plan.hosts:
        if plan.group(host.group).feed_executors:
            yield "feed", host.address, plan.ports.feed
    for world in plan.distributions:
        if world.kind == TORCH_DISTRIBUTED:
            yield "master", plan.host(plan.hosts_of(world)[0]).address, plan.master_port_of(world)
    for server in tf_data_servers(plan):
        # TensorFlow takes it on all addresses, whatever host it plays.
        yield f"tf.data.service ({server.stream} of {server.host})", _ANY, server.port
    for name, port in worker_ports(plan).items():
        yield "TensorFlow worker", plan.host(name).address, port


def _taken(address: str, port: int) -> str:
    """Returns why the port cannot be listened on; empty if it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: a connection of a former job that still lingers does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return "in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
    return ""


def check_tensorflow(job: Job) -> None:
    """Checks that the Python of the groups of tf.data.service has TensorFlow, where this is known before the start.

    A file of requirements, or a search path of the group's own, may bring it.

    Raises:
        EngineRefused: it has not.
    """
    groups = [
        name
        for name in job.tf_data_groups
        if not (requirements_file(job, name) or "PYTHONPATH" in job.environment_of(name))
    ]
    if groups and importlib.util.find_spec("tensorflow") is None:
        raise EngineRefused(
            f"tf.data.service needs TensorFlow, which {sys.executable} of {', '.join(groups)} does not have",
            hint="install it there (pip install tensorflow), or name it in a file of requirements",
        )


def check_name(job_name: str) -> None:
    """Checks that no job of that name runs.

    Raises:
        EngineRefused: one does.
    """
    for run in list_runs(alive=AskEngine()):
        try:
            running = run.header.job_name == job_name and not run.finished
        except (OSError, msgspec.DecodeError):  # no run that anybody could use
            continue
        if running:
            raise EngineRefused(
                f"a job named {job_name!r} is already running: {run.id}",
                hint=f"stop it with `headrace stop {run.id}`, or choose another job_name",
            )

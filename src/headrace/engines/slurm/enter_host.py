"""Runs the agent of a host, and stays until it has ended: what one task on every node runs.

    python -m headrace.engines.slurm.enter_host RUN_DIR GROUP [HOST]

SLURM_PROCID says which host of its group this node is, unless it is given: on a node of its own (see `lead`). What
only the node knows is filled in: its network interface, its memory, a folder for temporary files, the level of
isolation that works here. What Slurm sets in the environment stays for the user's scripts.

An agent removes the temporary files of its host and ends its programs. One that was killed cannot: this process does.
Where this one was killed too, the next host of this user on the node removes what it has left.
Slurm's signals are the agent's. They reach it too, as it is in the same process group and control group.

An isolated host (`shared_network`, the level of the local engine) gets its own /opt/ml (its tree), /tmp, /dev/shm,
name, processes, and an /etc/hosts with the addresses of all hosts. It keeps the node's network: the feed, MPI and
torchrun need the real one. What works is found out on each node by doing it. Nothing of it has a name in the file
system, so nothing is left on a node, whatever is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.child_python import UTF8, module_command
from headrace.control_group import memory_limit, open_kills
from headrace.engines.host_order import read_host_order
from headrace.engines.slurm.allocation import on_own_node
from headrace.engines.slurm.handover import scratch_key
from headrace.errors import HeadraceError, UsageError
from headrace.hosting.inputs.host_facts import name_own_interface, with_memory
from headrace.hosting.isolation import syscalls
from headrace.hosting.isolation.namespace_starter import NamespaceStarter
from headrace.hosting.isolation.needed_paths import needed_paths
from headrace.hosting.isolation.network_layout import (
    FILE,
    HOSTS,
    Instance,
    Layout,
    shared_hosts_text,
    shown_below_tmp,
)
from headrace.hosting.isolation.probing import likely_reason
from headrace.hosting.isolation.syscalls import may_separate
from headrace.hosting.supervision.cleanup import remove_scratch, scratch_dir, sweep_scratch
from headrace.hosting.supervision.instances import AgentStarter, supervisor_environment
from headrace.instance.launch_plan import (
    BY_NODE,
    NO_ISOLATION,
    SHARED_NETWORK,
    HostPlan,
    LaunchPlan,
    plan_text,
    write_plan,
)
from headrace.instance.lifeline import MACHINE_PYTHON, RUN_ID, SCRATCH
from headrace.instance.paths import BASE_VARIABLE, DEFAULT_BASE
from headrace.private_folders import open_private
from headrace.processes.bootstrap import become_subreaper
from headrace.processes.oom import FD_VARIABLE
from headrace.processes.process_table import kill_descendants
from headrace.runs import EventWriter, RunPaths, read_plan
from headrace.runs.events import HostIsolated

SAYS_SO = "engines.slurm.isolation says so"


def starter_on_node(plan: LaunchPlan, paths: RunPaths, host: str, named: Sequence[str]) -> NamespaceStarter:
    """Returns what starts the agent of a host in namespaces on this node. Writes into its temporary files.

    Args:
        plan: the launch plan, with the nodes' addresses.
        paths: the run's directory.
        host: name of the host.
        named: paths that the job names.

    Raises:
        OSError: they cannot be written.
    """
    key = scratch_key(plan, host)
    held = open_private(scratch_dir(key))
    instances = tuple(Instance(each.name, each.address, str(paths.host(each.name))) for each in plan.hosts)
    layout = Layout(
        user_namespace=not syscalls.may_separate(),
        outward=False,
        own_resolver=False,
        gateway="",
        visible=shown_below_tmp([*needed_paths(plan, paths.root), *named]),
        files=".",
        instances=instances,
        own_network=False,
        keep_ids=True,
    )
    machine = Path(HOSTS)
    known = machine.read_text(encoding="utf-8", errors="replace") if machine.exists() else ""
    folder = Path(f"/proc/self/fd/{held}")
    (folder / "hosts").write_text(shared_hosts_text(instances, known), encoding="utf-8")
    layout.write(folder / FILE)
    os.close(held)
    return NamespaceStarter(Path(FILE), layout, key)


NODE = "node-{}"  # the event file of what this process finds out about a host's node
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
END_SECONDS = 5.0  # for what an agent that was killed has left
KILLED = 128  # and the number of the signal: the exit code of a program that was killed, as a shell has it


def main() -> int:
    """Entry point. Returns the agent's exit code."""
    paths = RunPaths(Path(sys.argv[1]))
    plan = read_plan(paths, LaunchPlan)
    group, *named = sys.argv[2:]
    if named:
        plan = on_own_node(plan, named[0], int(os.environ["SLURM_CPUS_ON_NODE"]), read_host_order(paths).ranks)
    host = plan.host(named[0] if named else plan.group(group).hosts[int(os.environ["SLURM_PROCID"])])
    try:
        name_own_interface(host.base_dir, host)
    except UsageError as error:
        sys.exit(f"error: {error.message}")
    plan = with_memory(plan, host.name, memory_limit())
    host = plan.host(host.name)
    log = os.open(paths.engine / f"{host.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    words = module_command("headrace.agent", options=UTF8)
    printed = os.dup(2)
    os.dup2(log, 1)
    os.dup2(log, 2)
    become_subreaper()
    sweep_scratch()
    try:
        agent = start_agent(plan, paths, host, words)
    except HeadraceError as error:
        os.dup2(printed, 2)
        remove_scratch(scratch_key(plan, host.name))
        sys.exit(f"error: {error.message}; {error.hint}")
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    code = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
    kill_descendants(END_SECONDS)
    remove_scratch(scratch_key(plan, host.name))
    return code if code >= 0 else KILLED - code


def start_agent(plan: LaunchPlan, paths: RunPaths, host: HostPlan, words: Sequence[str]) -> int:
    """Starts the agent of a host, isolated as far as it is wanted and works here; the record says how far.

    Args:
        plan: the launch plan, with the nodes' addresses.
        paths: the run's directory.
        host: the host.
        words: the agent's command line.

    Raises:
        HeadraceError: the level that the job asks for does not work here.
    """
    how = read_host_order(paths)
    scratch = str(scratch_dir(scratch_key(plan, host.name)))
    variables = {BASE_VARIABLE: host.base_dir, RUN_ID: plan.run_id, SCRATCH: scratch, MACHINE_PYTHON: "1"}
    if how.isolation == NO_ISOLATION:
        _tell(plan, host, host.base_dir)
        return _start(AgentStarter(), host.name, words, variables)
    level, why = SHARED_NETWORK, SAYS_SO if how.isolation == SHARED_NETWORK else "namespaces work on this node"
    try:
        _tell(plan, host, DEFAULT_BASE)
        starter = starter_on_node(plan, paths, host.name, how.named_paths)
        agent = _start(starter, host.name, words, {**variables, BASE_VARIABLE: DEFAULT_BASE})
    except (HeadraceError, OSError) as error:
        told = error.message if isinstance(error, HeadraceError) else str(error)
        why = f"namespaces do not work on this node: {told} ({likely_reason(not may_separate())})"
        if how.isolation != BY_NODE:
            raise HeadraceError(f"{host.name}: {why}", "set engines.slurm.isolation to none or auto") from error
        level = NO_ISOLATION
        _tell(plan, host, host.base_dir)
        agent = _start(AgentStarter(), host.name, words, variables)
    with EventWriter(paths.events(NODE.format(host.name))) as events:
        events.write(HostIsolated(t=time.time(), group=host.group, host=host.name, level=level, why=why))
    return agent


def _start(starter: AgentStarter, host: str, words: Sequence[str], variables: Mapping[str, str]) -> int:
    kills = open_kills()
    start = starter.prepare(host, words)
    own = {} if kills is None else {FD_VARIABLE: str(kills)}
    process = subprocess.Popen(
        start.argv,
        stdin=0,
        # A TaskProlog of the cluster may have set another PYTHONPATH since the lead did.
        env={**supervisor_environment(variables[RUN_ID]), **variables, **own, **start.variables},
        pass_fds=start.pass_fds if kills is None else (*start.pass_fds, kills),
    )
    if kills is not None:
        os.close(kills)
    return starter.agent(start, process)


def _tell(plan: LaunchPlan, host: HostPlan, base_dir: str) -> None:
    """Writes the plan into the tree of a host as its agent gets it, which sees the tree in `base_dir`."""
    hosts = tuple(msgspec.structs.replace(each, base_dir=base_dir) if each is host else each for each in plan.hosts)
    write_plan(plan_text(msgspec.structs.replace(plan, hosts=hosts)), host.base_dir)


if __name__ == "__main__":
    sys.exit(main())

"""Runs the agent of a host, and stays until it has ended: what one task on every node runs.

    python -m headrace.engines.slurm.enter_host RUN_DIR GROUP

SLURM_PROCID says which host of its group this node is. What only the node knows is filled in: its network interface, a
folder for temporary files. The agent of the leader gets the lifeline, a FIFO of the lead on the same node. What Slurm
sets in the environment stays for the user's scripts.

An agent removes the temporary files of its host and ends its programs. One that was killed cannot: this process does.
Slurm's signals are the agent's. They reach it too, as it is in the same process group and control group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from headrace.hosting.inputs.host_facts import interface_of, name_interface
from headrace.hosting.supervision.scratch_dir import remove_scratch, scratch_dir
from headrace.instance.launch_plan import HostPlan, LaunchPlan
from headrace.instance.lifeline import OF_PLATFORM, OPTION, RUN_ID, SCRATCH
from headrace.instance.paths import BASE_VARIABLE
from headrace.processes.bootstrap import become_subreaper
from headrace.processes.process_table import kill_descendants
from headrace.processes.spawn import UTF8
from headrace.runs import RunPaths, read_plan

LIFELINE = "lifeline"  # below the run's engine directory
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
END_SECONDS = 5.0  # for what an agent that was killed has left
KILLED = 128  # and the number of the signal: the exit code of a program that was killed, as a shell has it


def main() -> int:
    """Entry point. Returns the agent's exit code."""
    paths = RunPaths(Path(sys.argv[1]))
    plan = read_plan(paths, LaunchPlan)
    host = plan.host(plan.group(sys.argv[2]).hosts[int(os.environ["SLURM_PROCID"])])
    interface = interface_of(host.address)
    if not interface:
        sys.exit(f"error: this node has no interface with the address {host.address}")
    name_interface(host.base_dir, interface)
    log = os.open(paths.engine / f"{host.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    words = [sys.executable, *UTF8, "-m", "headrace.agent"]
    if host.name == plan.leader:
        os.dup2(os.open(paths.engine / LIFELINE, os.O_RDONLY), 0)
        words.append(OPTION)
    os.dup2(log, 1)
    os.dup2(log, 2)
    become_subreaper()
    agent = subprocess.Popen(words, stdin=0, env={**os.environ, **agent_variables(plan, host)})
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    code = agent.wait()
    kill_descendants(END_SECONDS)
    remove_scratch(plan.run_id)
    return code if code >= 0 else KILLED - code


def agent_variables(plan: LaunchPlan, host: HostPlan) -> dict[str, str]:
    """Returns the variables of a host's agent. Slurm signals it, also that of the leader, which has a lifeline."""
    scratch = str(scratch_dir(plan.run_id))
    return {BASE_VARIABLE: host.base_dir, RUN_ID: plan.run_id, SCRATCH: scratch, OF_PLATFORM: "1"}


if __name__ == "__main__":
    sys.exit(main())

"""Runs the agent of this host: `python -m headrace.agent [--lifeline]`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

from headrace.instance.launch_plan import read_plan, read_secret
from headrace.instance.lifeline import OPTION
from headrace.instance.paths import TreePaths, base_directory
from headrace.processes.bootstrap import become_subreaper
from headrace.processes.process_table import descendants, reap, send


def kill_descendants(seconds: float = 5.0) -> None:
    """Kills all that descends from this process; the last resort at its end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        reap()
        left = descendants(os.getpid())
        if not left:
            return
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.01)


def main() -> int:
    """Entry point. Returns 0 if the job is complete; see `HostAgent.run`."""
    become_subreaper()
    base = base_directory()
    try:
        plan = read_plan(base)
        secret = read_secret(base)
        host = str(json.loads(TreePaths(base).resource_config.read_bytes())["current_host"])
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {base} is not the tree of a host: {error}", file=sys.stderr)
        return 2

    async def run() -> int:
        from headrace.agent.host_agent import HostAgent

        return await HostAgent(plan, host, secret, OPTION in sys.argv[1:]).run()

    try:
        return asyncio.run(run())
    finally:
        kill_descendants()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed; taking gRPC and the interpreter apart takes as long as a quarter of the imports

"""Sends a command to the job's leader, from its own host: `python -m headrace.agent.ask stop [--now]`.

For who stands outside of the process of the coordinator: a scheduler's script, or `exec` into a pod. Where hosts have
machines of their own, the leader's supervisor takes the command, in every part of the run; elsewhere the coordinator
does, while programs run. It reads plan and certificates from the tree of the host where it runs ($SAGEMAKER_BASE_DIR,
else /opt/ml).

Exit codes: 0 the command was taken, 1 nobody was reached or it was refused, 2 a wrong use.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from headrace.agent.control.control_transport import send_command
from headrace.instance.launch_plan import read_certificates, read_plan
from headrace.instance.lifeline import StopJob
from headrace.instance.paths import base_directory
from headrace.runs import CauseKind


def main(arguments: list[str]) -> int:
    """Entry point."""
    command = _command(arguments)
    base = base_directory()
    try:
        plan, tls = read_plan(base), read_certificates(base)
    except (OSError, ValueError) as error:
        print(f"error: {base} is not the tree of a host: {error}", file=sys.stderr)
        return 2
    address = f"{plan.coordinator_address}:{plan.ports.control}"
    try:
        asyncio.run(send_command(address, plan.leader, tls, command))
    except ConnectionError as error:
        print(f"error: the leader of the job at {address} has not taken the command: {error}", file=sys.stderr)
        return 1
    return 0


def _command(arguments: list[str]) -> StopJob:
    parser = argparse.ArgumentParser("python -m headrace.agent.ask", description="Asks the leader of a job.")
    stop = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("stop", help="stop the job")
    stop.add_argument("--now", action="store_true", help="kill its programs instead of asking them to end")
    stop.add_argument(
        "--grace", type=float, metavar="SECONDS", help="between SIGTERM and SIGKILL; the plan's by default"
    )
    stop.add_argument("--failed", action="store_true", help="the job ends as Failed, not as Stopped")
    kinds = [kind.value for kind in CauseKind]
    stop.add_argument("--kind", choices=kinds, default=CauseKind.STOPPED.value, help="of the cause")
    stop.add_argument("--reason", default="stopped by the user", help="in words")
    given = parser.parse_args(arguments)
    return StopJob(given.kind, given.reason, given.failed, 0.0 if given.now else given.grace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The supervisor of one host of a run whose hosts are on several machines, each with a run directory of its own.

    python -m headrace.hosting.supervision.one_host RUN_DIR HOST

or, in a process of one's own, `supervise_host(RunPaths(...), HOST)`. Exit code 0: the run is Completed (on
the leader's host), or the host has done its duty and all of it has come to the leader (on the others); 1 otherwise.

Before it starts, RUN_DIR holds what `prepare_remote_run` writes: `plan.json`, `code`, `engine/*.json` as prepared for
all hosts (what concerns others is taken out here), and `hosts/HOST` with the plan, the secret (mode 0600) and, with
encryption, the certificates; the plan's `base_dir` of the host leads there, and its `record_dir` is RUN_DIR. On the
leader's host RUN_DIR gets the record of all hosts, and `hosts/OTHER` what they made. Standard error is its log.

The machines meet at `ports.control` of the leader's address (7071), as their agents do. The leader's process may be
started before or after the others; each end waits `start_timeout`.

Signals: SIGTERM and SIGINT are the platform's doing, an infrastructure failure; a second one ends the host at once. The
leader's process then leaves the run without an end (Status.IN_PROGRESS, exit code 1) when its record is stored and
another attempt may come: the one that takes its place has the last word.
Nobody else may use them: a person stops the job with `python -m headrace.agent.ask stop [--now]` on the leader's host,
in every part of the run.

A process that takes the place of one that was lost is started in the same way, with an empty record: that of a host
joins the next attempt, that of the leader brings the record from its store first, if the job has one (`record:`). Of a
run that has ended already it returns the end, and does nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.hosting.helpers.artefacts import COLLECT, RESTORE, SYNC, artefact_plan
from headrace.hosting.helpers.helper_main import error_line
from headrace.hosting.helpers.store_record import NAME as STORE_RECORD
from headrace.hosting.inputs.requirements import INSTALL, VirtualEnvironment
from headrace.hosting.machines.host_record import bring_record, what_happened
from headrace.hosting.supervision.following_host import FollowingHost
from headrace.hosting.supervision.instances import StopOrders, supervisor_environment
from headrace.hosting.supervision.leading_host import Keep, LeadingHost
from headrace.instance.channels.stage_orders import SERVE, STAGE, read_order
from headrace.instance.launch_plan import LaunchPlan
from headrace.log_setup import VARIABLE, log_to_stderr
from headrace.processes.bootstrap import become_subreaper
from headrace.runs import RunPaths, Status, read_plan


def keep_own_orders(plan: LaunchPlan, paths: RunPaths, host: str) -> None:
    """Leaves in the run's directory on a machine the orders of one host. The leader's also collects and stores.

    Args:
        plan: the launch plan.
        paths: the run's directory on this machine.
        host: the host of this machine.

    Raises:
        OSError, msgspec.DecodeError: an order cannot be read or written.
    """
    for name in (STAGE, SERVE, RESTORE, SYNC, INSTALL, COLLECT, STORE_RECORD):
        file = paths.engine / f"{name}.json"
        if file.is_file() and not (host == plan.leader and name in (COLLECT, STORE_RECORD)):
            own = _own_order(plan, paths, name, host)
            file.write_bytes(msgspec.json.format(msgspec.json.encode(own)) + b"\n") if own else file.unlink()


def _own_order(plan: LaunchPlan, paths: RunPaths, name: str, host: str) -> object:
    """Returns what is in an order for a host; nothing if it has nothing to do."""
    if name in (STAGE, SERVE):
        order = read_order(paths.root, name)
        channels = tuple(channel for channel in order.channels if host in channel.hosts)
        bases = {each: base for each, base in order.bases.items() if each == host}
        return msgspec.structs.replace(order, bases=bases, channels=channels) if channels else None
    if name in (RESTORE, SYNC):
        artefacts = artefact_plan(paths, name)
        own = tuple(each for each in artefacts.hosts if each.name == host)
        return msgspec.structs.replace(artefacts, hosts=own, part=host)
    if name == INSTALL:
        wanted = msgspec.json.decode((paths.engine / f"{name}.json").read_bytes(), type=list[VirtualEnvironment])
        return [each for each in wanted if plan.host(host).group in each.groups]
    return None


_log = logging.getLogger("headrace.hosting.supervision.one_host")  # this module runs as __main__


def supervise_host(
    paths: RunPaths,
    host: str,
    orders: StopOrders | None = None,
    *,
    collected: bool = True,
    interruptions: int = 0,
    anew: bool = False,
    keep: Keep | None = None,
) -> Status:
    """Prepares, runs and finishes a host, and on the leader's host leads the run. For the main thread of a process.

    Args:
        paths: the run's directory on this machine; see the module.
        host: name of the host.
        orders: what signals mean; by default an infrastructure failure, see the module.
        collected: what the hosts make is collected on the leader's; else their platform takes it.
        interruptions: how often the run goes on after its platform took its machines away, whatever `retry` says: for
            a platform that starts other machines by itself.
        anew: a process for the leader is started only when the platform wants the run to go on, whatever its record
            says: what an attempt had made that has ended is lost.
        keep: has the platform make or end the machines of hosts that come and go, on the leader's host.

    Returns:
        How the run ended, on the leader's host; on others Completed when the host has done its duty, else Failed. On
        all InProgress when the platform ends the host and another process is to take its place.

    Raises:
        HeadraceError: the record of a lost leader cannot be brought back.
        OSError, ValueError, KeyError: the directory is not one of a prepared run with that host.
    """
    become_subreaper()
    os.environ.update(supervisor_environment(paths.id))
    plan = read_plan(paths, LaunchPlan)
    plan.host(host)
    keep_own_orders(plan, paths, host)
    if host != plan.leader:
        follower = FollowingHost(paths, plan, host, orders, collected=collected, interruptions=interruptions)
        return follower.run()
    bring_record(paths)
    earlier = what_happened(paths)
    if earlier.end is not None and not anew:
        _log.info("the run has ended already: %s", earlier.end.status.value)
        return earlier.end.status
    return LeadingHost(paths, plan, earlier, orders, interruptions, anew=anew, keep=keep).run()


def main() -> int:
    """Entry point. See the module for arguments and exit code."""
    root, host = sys.argv[1:]
    log_to_stderr(os.environ.get(VARIABLE, ""))
    try:
        status = supervise_host(RunPaths(Path(root)), host)
    except (HeadraceError, OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        print(f"error: {error_line(error)}", file=sys.stderr)
        return 1
    return 0 if status is Status.COMPLETED else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed; taking the interpreter apart takes long

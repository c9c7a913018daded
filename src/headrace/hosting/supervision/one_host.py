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
from headrace.instance.channels.stage_orders import SERVE, STAGE, order_path, read_order
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
    for name in (STAGE, SERVE):
        _own_channels(paths, name, host)
    for name in (RESTORE, SYNC):
        if _is_there(paths, name):
            artefacts = artefact_plan(paths, name)
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

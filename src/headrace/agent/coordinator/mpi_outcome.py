"""What the end of mpirun means. Pure.

The ranks of a world are programs of their hosts and report themselves, so mpirun's own end adds nothing as a rule.
It does when ranks are missing: mpirun was told to start fewer, or ended some, and exits with 0 all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.agent.control.control_messages import Exited
from headrace.agent.coordinator.first_cause import Suspect, SuspectKind
from headrace.agent.coordinator.host_state import HostState
from headrace.agent.program_specs import MPIRUN
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.ranks import world_size
from headrace.runs.cause import Cause, CauseKind

AFTER = 3.0  # seconds after mpirun's end within which the last ranks must have been reported


def missing_ranks(plan: LaunchPlan, first: str, exits: Mapping[str, Mapping[str, Exited]]) -> list[int]:
    """Returns the ranks of a world that did not end with 0.

    Args:
        plan: the launch plan.
        first: its first host.
        exits: what ended on each host, by stream. mpirun decides on which host a rank runs.
    """
    world = plan.distribution_of(plan.host(first).group)
    hosts = plan.hosts_of(world) if world else ()
    well = {stream for host in hosts for stream, end in exits.get(host, {}).items() if end.exit_code == 0}
    return [rank for rank in range(world_size(plan, first)) if str(rank) not in well]


def unfinished_worlds(plan: LaunchPlan, hosts: Mapping[str, HostState], now: float) -> Iterator[Suspect]:
    """Yields a suspect for each world whose mpirun ended some time ago while ranks are missing."""
    for host in hosts.values():
        if host.mpirun_ended and now > host.mpirun_ended + AFTER:
            missing = missing_ranks(plan, host.name, {each.name: each.exits for each in hosts.values()})
            if missing:
                cause = Cause(CauseKind.RANKS_MISSING, incomplete(missing), host.group, host.name, MPIRUN)
                yield Suspect(SuspectKind.LAUNCHER, now, cause)


def incomplete(ranks: list[int]) -> str:
    """Returns, in words, which ranks are missing after mpirun ended."""
    named = ", ".join(map(str, ranks[:10])) + (", ..." if len(ranks) > 10 else "")
    return f"mpirun ended, and of its ranks these did not run to a good end: {named}"

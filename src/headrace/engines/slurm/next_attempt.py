"""A job that Slurm has queued again: what its new lead makes of what an earlier one has left, perhaps without a word.

lead of attempt 1    writes that another attempt is to come, and has the job queued again; or it dies with its node
Slurm                starts the batch script again, perhaps on other nodes
lead of attempt 2    begins it here: what attempt 1 has made is cleared, except its checkpoints
"""

from __future__ import annotations

import time

from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.handover import Placement, read_placement
from headrace.engines.slurm.lost_leader import node_lost
from headrace.engines.slurm.slurm_commands import SlurmUnreachable
from headrace.engines.slurm.slurm_state import said_by_slurm, why_queued_again
from headrace.hosting.supervision.attempts import await_instances, clear
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import Cause, EventWriter, Run, RunPaths
from headrace.runs.events import AttemptStarted, SecondaryStatus, StatusChanged


def begin_next_attempt(paths: RunPaths, plan: LaunchPlan, log: str, events: EventWriter) -> Cause | None:
    """Begins another attempt of a run, if an earlier lead has begun one.

    Args:
        paths: the run's directory.
        plan: the launch plan of the earlier attempt, or as it was submitted.
        log: the output of the batch script so far.
        events: the engine's event file.

    Returns:
        Why the run must end now: it has no other attempt.

    Raises:
        HeadraceError, OSError: what the earlier attempt has made cannot be cleared.
    """
    run = Run(paths, alive=lambda _: True)  # this process answers for it
    state = run.state()
    parts = [part.status for part in state.transitions if part.status is not SecondaryStatus.PENDING]
    if not parts:
        return None
    number = state.attempt + 1
    if parts[-1] is not SecondaryStatus.RESTARTING:
        cause = _why_began_again(plan, read_placement(paths), said_by_slurm(log))
        if number > plan.retry.attempts + 1:
            return cause
        known = [event.t for event in run.events() if not _is_waiting(event)]
        await_instances(events, plan.retry, number, cause, known[-1])
    clear([host.name for host in plan.hosts], plan, paths)
    events.write(AttemptStarted(t=time.time(), number=number))
    return None


def _is_waiting(event: object) -> bool:
    return isinstance(event, StatusChanged) and event.status is SecondaryStatus.PENDING


def _why_began_again(plan: LaunchPlan, before: Placement, said: str) -> Cause:
    try:
        down = slurm_commands.nodes_down(before.nodes) if before.nodes else ()
    except SlurmUnreachable:  # the run goes on all the same
        down = ()
    if not down:
        return why_queued_again(before.job_id, said)
    return node_lost(plan, before, down[0])

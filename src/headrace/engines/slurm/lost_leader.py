"""The leader's node is lost, and Slurm keeps the job, as the leader's group has another node (``--no-kill``).

Slurm      takes a node out of the job once it has not answered for SlurmdTimeout. The batch script was there
refresh    sees that nothing leads the run any more: it has the job queued again if `retry` wants another attempt,
           else it cancels the job and the run has failed
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

from headrace.engines.platform_news import platform_news
from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.components import hosts_by_task
from headrace.engines.slurm.handover import Placement, read_placement
from headrace.engines.slurm.slurm_commands import SlurmUnreachable
from headrace.engines.slurm.slurm_state import Component
from headrace.hosting.supervision.attempts import is_tried_again
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, read_plan

_log = logging.getLogger(__name__)
RUNNING = "RUNNING"
_host_names = functools.cache(slurm_commands.host_names)  # the same for the same list


def node_lost(plan: LaunchPlan, placed: Placement, node: str) -> Cause:
    """Returns the cause of an attempt's end: one of its nodes is lost."""
    host = dict(zip(placed.nodes, hosts_by_task(plan), strict=True))[node]
    words = f"Slurm job {placed.job_id} lost a node: {node}"
    return Cause(CauseKind.HOST_LOST, words, group=host.group, host=host.name, infrastructure=True)


def end_if_lost(paths: RunPaths, job_id: int, queue: Iterable[Component]) -> None:
    """Ends a run that has lost its leader's node, or has its job queued again, as its `retry` says.

    Args:
        paths: the run, whose job runs.
        job_id: the job.
        queue: what squeue said.

    Raises:
        SlurmUnreachable: Slurm does not answer.
        OSError, msgspec.DecodeError: the run cannot be read or written.
    """
    first = next(each for each in queue if (each.job_id, each.offset) == (job_id, 0))
    if first.state != RUNNING or not _is_gone(read_placement(paths), first.nodes):
        return
    with platform_news(paths) as news:  # one process at a time: the job must not be queued again twice
        placed = read_placement(paths)  # of a new attempt, perhaps
        shown = next((each for each in slurm_commands.show(job_id) if each.offset == 0), None)
        if news.finished or shown is None or shown.state != RUNNING or shown.restarts != placed.restarts:
            return
        if not _is_gone(placed, shown.nodes):
            return
        plan = read_plan(paths, LaunchPlan)
        cause = node_lost(plan, placed, placed.nodes[0])
        number = Run(paths, alive=lambda _: True).state().attempt
        if is_tried_again(plan.retry, number, Status.FAILED, cause):
            try:
                slurm_commands.requeue(job_id)
                return
            except SlurmUnreachable as error:
                _log.warning("Slurm job %d could not be queued again: %s", job_id, error.message)
        slurm_commands.cancel(job_id)
        news.end(Status.FAILED, cause)


def _is_gone(placed: Placement, nodes: str) -> bool:
    """Tells whether the node of the batch script, the first one, is not in a list of nodes such as ``data[1-2]``."""
    return bool(placed.nodes and nodes) and placed.nodes[0] not in _host_names(nodes)

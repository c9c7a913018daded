"""The folders of a run, put into a launch plan that was made before the run existed. Pure."""

from __future__ import annotations

import msgspec

from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.paths import DEFAULT_BASE
from headrace.runs import RunPaths


def in_run(plan: LaunchPlan, paths: RunPaths) -> LaunchPlan:
    """Returns the plan with the id and the folders of a run in place of those that it has.

    A host whose tree is /opt/ml has a file system of its own, and keeps it. Any other tree is in the run's directory.
    """
    hosts = tuple(
        msgspec.structs.replace(
            host,
            base_dir=DEFAULT_BASE if host.base_dir == DEFAULT_BASE else str(paths.host(host.name)),
            record_dir=str(paths.root),
        )
        for host in plan.hosts
    )
    return msgspec.structs.replace(plan, run_id=paths.id, hosts=hosts)

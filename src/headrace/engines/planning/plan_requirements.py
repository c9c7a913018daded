"""Which groups of a job have requirements, and the environment of each, see `hosting.inputs.requirements`."""

from __future__ import annotations

from pathlib import Path, PurePath

import msgspec

from headrace.hosting.inputs.requirements import DEFAULT, VirtualEnvironment, environment_of
from headrace.job import Job
from headrace.runs import RunPaths


def plan_environments(job: Job, paths: RunPaths) -> dict[str, VirtualEnvironment]:
    """Returns the environment of each group that has requirements; the code of the run is in place.

    Raises:
        UsageError: a file of requirements that cannot be read, or a Python that is none.
    """
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for group in job.groups:
        name = group.instance_group_name
        file = requirements_file(job, name, paths.code)
        if file:
            variables = tuple(sorted(job.environment_of(name).items()))
            groups.setdefault((file, variables), []).append(name)
    environments: dict[str, VirtualEnvironment] = {}
    for (file, variables), names in groups.items():
        environment = environment_of(file, paths, tuple(names), job.local.python or "", dict(variables))
        shared = environments.get(environment.path, environment)
        both = (*shared.groups, *(name for name in names if name not in shared.groups))
        environments[environment.path] = msgspec.structs.replace(shared, groups=both)
    return {name: environment for environment in environments.values() for name in environment.groups}


def requirements_file(job: Job, group: str, code: Path | None = None) -> str:
    """Returns a group's file of requirements, inside the code: its own, else `DEFAULT` if that is there; else empty.

    Args:
        job: the job.
        group: name of the group.
        code: folder of the run's code; None before there is a run. An archive is not opened to look for the file.
    """
    if code is None:
        there = any(PurePath(name).name == DEFAULT for name in job.dependencies)
        there = there or bool(job.source_dir and (job.base_path / job.source_dir / DEFAULT).is_file())
    else:
        there = (code / DEFAULT).is_file()
    return job.requirements_of(group) or (DEFAULT if there else "")

"""Fills the directory of a run: the job, a snapshot of the code, the tree of every host, plan and secret."""

from __future__ import annotations

import secrets

import msgspec

from headrace.engines.local.code import bring_code
from headrace.engines.local.isolation.arranging import arrange
from headrace.engines.local.isolation.layout import INTERFACE
from headrace.instance import Channel, build_tree
from headrace.instance.launch import NAMESPACE, LaunchPlan, write_plan
from headrace.job import Job
from headrace.runs import RunPaths


def prepare(job: Job, plan: LaunchPlan, paths: RunPaths) -> None:
    """Writes all that the supervisor and the agents need.

    Args:
        job: the job.
        plan: its launch plan.
        paths: the run's directory, which exists.

    Raises:
        OSError: something cannot be read or written.
    """
    (paths.root / "job.yaml").write_text(job.to_yaml())
    (paths.root / "job.json").write_text(job.to_json())
    (paths.root / "plan.json").write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
    bring_code(job.source_dir, job.base_path, job.dependencies, paths.code, leave_out=paths.root.parent)
    secret = secrets.token_hex(32)
    apart = plan.isolation.level == NAMESPACE
    if apart:
        arrange(job, plan, paths)
    for host in plan.hosts:
        tree = paths.host(host.name)  # host.base_dir is what the host itself sees
        build_tree(
            tree,
            current_host=host.name,
            groups=plan.groups,
            code=paths.code,
            job_name=plan.job_name,
            entry_point=plan.entry_point_of(host.group),
            hyperparameters=job.hyperparameters_of(host.group),
            channels={
                name: Channel(
                    source=channel.local_path(job.base_path),
                    content_type=channel.content_type,
                    input_mode=job.input_mode_of(name),
                    distribution=channel.distribution,
                )
                for name, channel in job.channels_of(host.group).items()
            },
            distributions=plan.distributions,
            network_interface_name=INTERFACE if apart else "lo",
        )
        write_plan(plan, tree, secret)

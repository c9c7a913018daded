"""What `plan` and `check` of the Slurm engine return: a job, its launch plan and its channels.

Until Slurm has given the job its nodes, a host's address is its name, and a group whose data workers are `auto` has one
on every host. The lead puts the nodes' addresses and CPUs in their place (see `allocation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.engines.planning.engine_job import EngineJob, range_sentences
from headrace.engines.remote_job import remote_plan
from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.batch_script import Places, batch_script, host_script
from headrace.engines.slurm.node_isolation import isolation_of_nodes
from headrace.engines.slurm.partition_rules import doubts
from headrace.engines.slurm.slurm_commands import SlurmUnreachable
from headrace.instance.channels.stage_orders import ChannelOrder
from headrace.job import Job
from headrace.runs import RunPaths

PACKAGE = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True)
class SlurmJob(EngineJob):
    """A job for a Slurm cluster."""

    ENGINE = "slurm"

    @property
    def limits(self) -> tuple[str, ...]:
        """What its nodes are asked for with, in sentences."""
        found = []
        for group in self.job.groups:
            nodes = self.job.slurm.nodes_of(group.instance_group_name)
            words = [
                f"{key} {value}"
                for key, value in nodes.model_dump(exclude={"options", "step_options"}).items()
                if value
            ]
            words += [*nodes.options, *nodes.step_options, *(["exclusive"] if self.job.slurm.exclusive else [])]
            count = group.instance_count
            text = f"{group.instance_group_name}: {count} Slurm node{'' if count == 1 else 's'}"
            found.append(", ".join([text, *words]))
        return (*found, *range_sentences(self.plan))

    def doubts(self) -> tuple[str, ...]:
        """See `EngineJob`: what the partitions do not allow, and nodes that do not reach each other."""
        with slurm_commands.asking(self.job.slurm.cluster or ""):
            try:
                partitions, alone = slurm_commands.partitions(), slurm_commands.loopback_nodes()
            except SlurmUnreachable:  # not a machine that submits jobs: nothing can be known
                return ()
        found = [
            sentence
            for group in self.job.groups
            for sentence in doubts(
                group.instance_group_name,
                group.instance_count or 0,
                self.job.slurm.nodes_of(group.instance_group_name),
                self.plan.max_run,
                partitions,
            )
        ]
        if alone and len(self.plan.hosts) > 1:
            found.append(
                f"NodeAddr of {', '.join(alone)} in slurm.conf is a loopback address, at which no other node reaches it"
            )
        return tuple(found)

    def script(self, paths: RunPaths, python: str, longest: int = 0) -> str:
        """Returns the batch script.

        Args:
            paths: the run's directory.
            python: the interpreter that runs the lead.
            longest: see `batch_script`.
        """
        return batch_script(self.job, self.plan, Places(str(paths.root), paths.id, python, PACKAGE), longest)

    def host_scripts(self, paths: RunPaths, python: str, longest: int = 0) -> dict[str, str]:
        """Returns the batch script of each host that comes and goes, by host. Arguments as for `script`."""
        places = Places(str(paths.root), paths.id, python, PACKAGE)
        hosts = [host.name for host in self.plan.hosts if self.plan.comes_and_goes(host.name)]
        return {host: host_script(self.job, self.plan, places, host, longest) for host in hosts}


def plan_slurm_job(job: Job, orders: tuple[ChannelOrder, ...], paths: RunPaths, python: str) -> SlurmJob:
    """Returns the job with its launch plan. Pure.

    Args:
        job: the job; the rules of this engine hold for it.
        orders: all its channels.
        paths: the run's directory; it need not exist.
        python: interpreter of the user's programs.
    """
    plan, options = remote_plan(job, paths, python, with_range=True), job.slurm
    plan = msgspec.structs.replace(
        plan,
        stop_grace=options.stop_grace,
        start_timeout=max(plan.start_timeout, options.start_timeout),
        isolation=isolation_of_nodes(options.isolation),
    )
    return SlurmJob(job, plan, orders)

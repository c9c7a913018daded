"""Options of the local engine and of Slurm: how hosts are played, and what nodes are asked for with."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.job.model import field_types
from headrace.job.model.field_types import AsList, AsMapping, line, matching, one_of, trimmed, whole
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import broken


class LocalPorts(Part):
    """TCP ports of the local engine, the same on every host. Those that are not given are free ones.

    Attributes:
        control: the coordinator's; by default 7071 if that is free.
        feed: the feed servers'; by default 7070 if that is free.
        tf_data: tf.data.service's dispatcher's, by default 7072 if that is free; its workers take the ports after it.
        master: torch.distributed's; by default 7777 if that is free.
    """

    control: field_types.Port | None = None
    feed: field_types.Port | None = None
    tf_data: field_types.Port | None = None
    master: field_types.Port | None = None


class LocalNetwork(Part):
    """The network of a group's hosts, with isolation ``namespace`` only.

    Attributes:
        bandwidth: of each host, each way: a number and ``kbit``, ``mbit`` or ``gbit``, e.g. ``200mbit``.
    """

    bandwidth: field_types.Bandwidth


class LocalOptions(Part):
    """How this machine plays all hosts.

    Attributes:
        cpu_sets: CPU ids of groups, e.g. ``0-3,5``; divided evenly among a group's hosts, or shared by them when there
            are fewer CPUs. By default all CPUs.
        cpu_shares: weights of all groups, above 0; the machine's CPUs are divided in proportion, or shared when there
            are fewer CPUs than groups. Not together with `cpu_sets`.
        stop_grace: seconds between SIGTERM and SIGKILL, 0 to 3,600.
        start_timeout: seconds within which the agents of all hosts must have started; by default 60, or 2 a host if
            that is more.
        address_prefix: first three octets of a loopback address; host ``algo-n`` has the address
            ``<address_prefix>.n``.
        ports: TCP ports, all different; by default free ones.
        isolation: ``namespace``: every host has its own file system, processes and network; ``shared_network``: all
            hosts share the network of this machine; ``none``: they share all three; ``auto``: the best that works.
        network: bandwidth of the hosts of groups; with isolation ``namespace`` only.
        limits: ``auto``: CPUs and memory of hosts in proportion to their instance types, where this machine can;
            ``none``.
        gpus: GPU ids and ranges of groups, e.g. ``0,1``; divided evenly among a group's hosts.
        python: interpreter of the programs, by default the one that runs headrace; install headrace in it to use its
            loader.
    """

    cpu_sets: Annotated[dict[str, field_types.CpuSet], field_types.AsMapping] = Field(default_factory=dict)
    cpu_shares: Annotated[dict[str, field_types.CpuShare], field_types.AsMapping] = Field(default_factory=dict)
    stop_grace: field_types.StopGrace = 30.0
    start_timeout: field_types.Seconds | None = None
    address_prefix: field_types.AddressPrefix = "127.0.1"
    ports: LocalPorts = LocalPorts()
    isolation: field_types.Isolation = "auto"
    network: Annotated[dict[str, LocalNetwork], field_types.AsMapping] = Field(default_factory=dict)
    limits: field_types.Limits = "auto"
    gpus: Annotated[dict[str, field_types.GpuSet], field_types.AsMapping] = Field(default_factory=dict)
    python: Annotated[str, line(1, 4096)] | None = None


_SAID_OTHERWISE = {
    "--nodes -N": "it is the number of the group's instances",
    "--ntasks -n --ntasks-per-node": "one agent runs on every node",
    "--array -a": "a heterogeneous job cannot be an array",
    "--export --export-file": "variables of programs are `environment`",
    "--job-name -J": "it is the job_name",
    "--output -o --error -e": "it is in the run's folder",
    "--comment": "it holds the run's id",
    "--clusters -M": "write cluster",
    "--signal": "it asks the job to stop before its time is over",
    "--requeue": "a job is started again with retry: {attempts: 3}",
    "--no-requeue --no-kill": "it is given already",
    "--wrap": "the script is headrace's",
    "--hold": "submit it when it may start",
    "--partition -p": "write partition",
    "--constraint -C": "write constraint",
    "--gres": "write gres",
    "--account -A": "write account",
    "--qos -q": "write qos",
    "--exclusive": "write exclusive: true",
}
_OURS = {name: words for names, words in _SAID_OTHERWISE.items() for name in names.split()}
"""What of sbatch's options a job says in another way, with the way."""
_OF_STEP = {
    **{name: words for name, words in _OURS.items() if name.startswith("--")},
    "--het-group": "one step starts the agents of one group",
    "--kill-on-bad-exit": "the coordinator says when the job has failed",
    "--wait": "the coordinator says when the job has ended",
    "--open-mode": "it is given already",
}
"""The same for srun."""

_LONG = r"--[a-z][a-z-]*(=.*)?"


def _option(rule: str, pattern: str, key: str, ours: dict[str, str]) -> BeforeValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise broken(rule)
        name = text.partition("=")[0] if text.startswith("--") else text[:2]
        if name in ours:
            raise broken(f"{name} is not for {key}", hint=ours[name])
        return text

    return BeforeValidator(check)


_VALUE = trimmed(1, 256)
_SBATCH = "must be an option of sbatch, such as '--mem=64G' or '-x node7'"
_SRUN = "must be a long option of srun, such as '--container-image=/shared/image.sqsh'"
SbatchValue = Annotated[str, _VALUE]
ClusterName = Annotated[
    str, matching("must be the name of one cluster of Slurm", r"(?!all$)[A-Za-z0-9_][A-Za-z0-9_.-]*"), _VALUE
]
SbatchOption = Annotated[str, _option(_SBATCH, rf"{_LONG}|-[A-Za-z].*", "options", _OURS), _VALUE]
StepOption = Annotated[str, _option(_SRUN, _LONG, "step_options", _OF_STEP), _VALUE]


class SlurmNodes(Part):
    """What nodes are asked for with; the words are Slurm's.

    Attributes:
        partition: partition, or several with commas.
        constraint: features of a node, e.g. ``skylake&ib``.
        gres: generic resources of a node, e.g. ``gpu:a100:4``.
        account: account that is charged.
        qos: quality of service.
        options: further options of sbatch, word for word, e.g. ``--mem=64G``; they come last and win. What the job says
            in another way is refused, e.g. ``--nodes``.
        step_options: options of the srun that starts the agents, word for word, e.g. ``--container-image=...``.
    """

    partition: SbatchValue | None = None
    constraint: SbatchValue | None = None
    gres: SbatchValue | None = None
    account: SbatchValue | None = None
    qos: SbatchValue | None = None
    options: Annotated[tuple[SbatchOption, ...], AsList] = ()
    step_options: Annotated[tuple[StepOption, ...], AsList] = ()


class SlurmOptions(SlurmNodes):
    """How a Slurm cluster plays the hosts; one node is one host.

    What is given here holds for all groups; what a group has of its own in `groups` stands in its place.

    Attributes:
        partition: of all groups, as are the next six; texts of at most 256 characters on one line.
        constraint: features of a node.
        gres: generic resources of a node.
        account: account that is charged.
        qos: quality of service.
        options: further options of sbatch, word for word.
        step_options: options of the srun that starts the agents, word for word.
        cluster: the cluster, where it is not that of this machine: a name that the accounting of both (slurmdbd) knows.
        groups: the same seven keys for single groups, in place of what holds for all; options are added.
        exclusive: whether a node is given to this job alone, with all its memory; else jobs share nodes, each with its
            own ports.
        launcher: words before the agent's command line on every node, e.g. ``[apptainer, exec, --nv, image.sif]``.
        python: interpreter on the nodes; by default the one that submits the job.
        isolation: ``shared_network``: every host has its own /opt/ml, /tmp, name and processes on its node; ``none``;
            ``auto``: on each node the best that works there.
        time_margin: seconds beyond `max_run` that are asked for: for channels, requirements and results.
        start_timeout: seconds within which the agents of all nodes must have started.
        stop_grace: seconds between SIGTERM and SIGKILL, 0 to 3,600.
    """

    cluster: ClusterName | None = None
    groups: Annotated[dict[str, SlurmNodes], AsMapping] = Field(default_factory=dict)
    exclusive: field_types.Flag = True
    launcher: field_types.Command | None = None
    python: SbatchValue | None = None
    isolation: Annotated[Literal["auto", "none", "shared_network"], one_of] = "auto"
    time_margin: Annotated[int, whole(0, field_types.MAX_RUN_LIMIT, " seconds")] = 600
    start_timeout: field_types.Seconds = 600.0
    stop_grace: field_types.StopGrace = 30.0

    def nodes_of(self, group_name: str) -> SlurmNodes:
        """Returns what the nodes of a group are asked for with; its own options come after those of all groups."""
        own = self.groups.get(group_name, SlurmNodes())
        lists = {name: (*getattr(self, name), *getattr(own, name)) for name in ("options", "step_options")}
        values = {name: getattr(own, name) or getattr(self, name) for name in SlurmNodes.model_fields}
        return SlurmNodes(**{**values, **lists})

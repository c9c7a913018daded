"""Fills the directory of a run: the job, a snapshot of the code, the tree of every host, plan and secret."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.engines.planning.code_size import check_entry_points, code_notes, ignored_in
from headrace.engines.planning.host_certificates import make_certificates
from headrace.engines.planning.plan_artefacts import prepare_artefacts
from headrace.engines.planning.plan_channels import prepare_channels, tree_channels
from headrace.engines.planning.plan_requirements import plan_environments
from headrace.hosting.helpers.store_record import RecordOrder, write_order
from headrace.hosting.inputs.host_facts import with_pythons
from headrace.hosting.inputs.requirements import prepare_install
from headrace.hosting.inputs.source_code import bring_code, code_digest
from headrace.instance import build_tree
from headrace.instance.channels.stage_orders import ChannelOrder
from headrace.instance.launch_plan import HostPlan, LaunchPlan, plan_text, write_certificates, write_plan, write_secret
from headrace.instance.paths import DEFAULT_BASE
from headrace.job import Job
from headrace.job.model.path_types import is_archive
from headrace.log_setup import tell_user
from headrace.runs import RunPaths, runs_dir


def prepare(
    job: Job,
    plan: LaunchPlan,
    orders: Sequence[ChannelOrder],
    paths: RunPaths,
    *,
    interface: str = "lo",
    views: bool = False,
    arrange: Callable[[LaunchPlan], LaunchPlan] | None = None,
) -> None:
    """Writes all that the supervisor and the agents need, for hosts that see the run's directory under its path.

    Args:
        job: the job.
        plan: the launch plan of this run.
        orders: all channels of the job.
        paths: the run's directory, which exists.
        interface: the network interface of every host.
        views: whether every host has views of its own of its channels.
        arrange: called with the plan before the trees of the hosts are made; returns it as they get it.

    Raises:
        UsageError, StorageError: code or requirements that cannot be used.
        OSError: something cannot be read or written.
    """
    write_job(job, paths)
    bring_job_code(job, paths)
    environments = plan_environments(job, paths)
    plan = with_pythons(plan, {group: environment.python for group, environment in environments.items()})
    prepare_install(environments, paths)
    if arrange is not None:
        plan = arrange(plan)
    code = None if plan.isolation.shared_code else paths.code
    write_trees(job, plan, orders, paths, code=code, interface=interface, views=views)
    prepare_artefacts(job, plan, paths)
    if job.record is not None:
        write_order(paths, RecordOrder(job.record.uri, job.record.interval))
    prepare_channels(plan, orders, paths)


def write_job(job: Job, paths: RunPaths) -> None:
    """Writes what was asked for, in headrace's words and in the service's. Raises OSError."""
    (paths.root / "job.yaml").write_text(job.to_yaml(), encoding="utf-8")
    paths.job.write_text(job.to_json(), encoding="utf-8")
    paths.request.write_text(json.dumps(job.request_form(), indent=1), encoding="utf-8")


def bring_job_code(job: Job, paths: RunPaths, runs: Path | None = None) -> None:
    """Makes the snapshot of the job's code.

    Args:
        job: the job.
        paths: the run's directory.
        runs: where all runs are, which is not copied; None for the folder in which this one is.

    Raises:
        UsageError, StorageError, OSError: it cannot be made.
    """
    archive, left_out = is_archive(job.source_dir), runs or paths.root.parent
    beside = (*job.scripts, *job.dependencies)
    for note in code_notes(job, left_out):
        tell_user(note)
    bring_code(
        job.source_dir, job.base_path, beside, paths.code, leave_out=left_out, archive=archive, ignored_in=ignored_in
    )
    check_entry_points(job, paths.code)


def digest_of_code(job: Job) -> str:
    """Returns what tells the content of the job's code from any other. Raises UsageError and OSError."""
    beside = (*job.scripts, *job.dependencies)
    archive = is_archive(job.source_dir)
    return code_digest(job.source_dir, job.base_path, beside, runs_dir(), archive=archive, ignored_in=ignored_in)


def write_trees(
    job: Job,
    plan: LaunchPlan,
    orders: Sequence[ChannelOrder],
    paths: RunPaths,
    *,
    code: Path | None,
    interface: str,
    views: bool,
) -> None:
    """Writes the plan, and the tree of every host with it, a new secret of the job and its certificates.

    Args:
        job: the job.
        plan: its launch plan.
        orders: all its channels.
        paths: the run's directory.
        code: what becomes the code of every tree; None leaves that for later.
        interface: the network interface of every host.
        views: whether channels that are folders are made later: as views of them, or on the hosts.

    Raises:
        UsageError: a hyperparameter or channel that an instance cannot have.
        OSError: a tree cannot be written.
    """
    text, secret = plan_text(plan), secrets.token_hex(32)
    paths.plan.write_text(text, encoding="utf-8")
    certificates = make_certificates(plan.run_id, [host.name for host in plan.hosts])
    for host in plan.hosts:
        tree = paths.host(host.name)  # host.base_dir is what the host itself sees
        hyperparameters = job.hyperparameters_of(host.group)
        build_tree(
            tree,
            current_host=host.name,
            groups=plan.groups,
            code=code,
            job_name=plan.job_name,
            entry_point=plan.entry_point_of(host.group),
            hyperparameters=hyperparameters,
            texts=_texts(job, host),
            verbatim=job.request_texts_of(host.group) is not None,
            channels=tree_channels(job, orders, host.name, views),
            distributions=plan.distributions,
            network_interface_name=interface,
        )
        write_plan(text, tree)
        write_secret(secret, tree)
        write_certificates(tree, certificates[host.name])


def _texts(job: Job, host: HostPlan) -> dict[str, str]:
    """The hyperparameters of a host that are texts already, and those that are paths of its tree."""
    moved = moved_paths(job.hyperparameters_of(host.group), host.base_dir)
    verbatim = job.request_texts_of(host.group)
    texts = job.hyperparameter_texts_of(host.group) | job.reserved_texts if verbatim is None else verbatim
    return texts | {name: json.dumps(path) for name, path in moved.items()}


def moved_paths(hyperparameters: Mapping[str, object], base: str) -> dict[str, str]:
    """Returns the hyperparameters that are paths of an instance, as a host has them whose tree is elsewhere.

    `--model_dir /opt/ml/model`, which SageMaker's TensorFlow estimator gives to every script, would else be a place of
    this machine.

    >>> moved_paths({"model_dir": "/opt/ml/model", "note": "/opt/mlx"}, "/runs/r/hosts/algo-1")
    {'model_dir': '/runs/r/hosts/algo-1/model'}
    """
    return {
        name: base + value[len(DEFAULT_BASE) :]
        for name, value in hyperparameters.items()
        if isinstance(value, str) and f"{value}/".startswith(f"{DEFAULT_BASE}/") and base != DEFAULT_BASE
    }

"""Fills the directory of a run: the job, a snapshot of the code, the tree of every host, plan and secret."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from headrace.engines.local.checked_job import CheckedJob
from headrace.engines.local.isolation.network_layout import INTERFACE
from headrace.engines.local.isolation_plan import arrange
from headrace.engines.planning.plan_artefacts import prepare_artefacts
from headrace.engines.planning.plan_channels import prepare_channels, tree_channels
from headrace.engines.planning.plan_requirements import plan_environments
from headrace.hosting.helpers.store_record import RecordOrder, write_order
from headrace.hosting.inputs.host_certificates import make_certificates
from headrace.hosting.inputs.requirements import prepare_install
from headrace.hosting.inputs.source_code import bring_code
from headrace.instance import build_tree
from headrace.instance.certificates import write_certificates
from headrace.instance.launch_plan import LaunchPlan, write_plan
from headrace.instance.paths import DEFAULT_BASE
from headrace.job.model.path_types import is_archive
from headrace.runs import RunPaths


def prepare(checked: CheckedJob, paths: RunPaths) -> None:
    """Writes all that the supervisor and the agents need.

    Args:
        checked: the job, with the launch plan of this run.
        paths: the run's directory, which exists.

    Raises:
        UsageError, StorageError: code or requirements that cannot be used.
        OSError: something cannot be read or written.
    """
    job, isolated = checked.job, checked.isolated
    (paths.root / "job.yaml").write_text(job.to_yaml(), encoding="utf-8")
    paths.job.write_text(job.to_json(), encoding="utf-8")
    paths.request.write_text(json.dumps(job.request_form(), indent=1), encoding="utf-8")
    archive, runs = is_archive(job.source_dir), paths.root.parent
    beside = (*job.scripts, *job.dependencies)
    bring_code(job.source_dir, job.base_path, beside, paths.code, leave_out=runs, archive=archive)
    environments = plan_environments(job, paths)
    plan = with_pythons(checked.plan, {group: environment.python for group, environment in environments.items()})
    prepare_install(environments, paths)
    paths.plan.write_text(plan_text(plan), encoding="utf-8")
    secret = secrets.token_hex(32)
    certificates = make_certificates(plan)
    if isolated:
        arrange(replace(checked, plan=plan), paths)
    for host in plan.hosts:
        tree = paths.host(host.name)  # host.base_dir is what the host itself sees
        hyperparameters = job.hyperparameters_of(host.group)
        moved = {name: json.dumps(path) for name, path in moved_paths(hyperparameters, host.base_dir).items()}
        verbatim = job.request_texts_of(host.group)
        texts = job.hyperparameter_texts_of(host.group) | job.reserved_texts if verbatim is None else verbatim
        build_tree(
            tree,
            current_host=host.name,
            groups=plan.groups,
            code=paths.code,
            job_name=plan.job_name,
            entry_point=plan.entry_point_of(host.group),
            hyperparameters=hyperparameters,
            texts=texts | moved,
            verbatim=verbatim is not None,
            channels=tree_channels(job, checked.orders, host.name, isolated),
            distributions=plan.distributions,
            network_interface_name=INTERFACE if plan.isolation.own_network else "lo",
        )
        write_plan(plan, tree, secret)
        if plan.encrypt:
            write_certificates(tree, certificates[host.name])
    prepare_artefacts(job, plan, paths)
    if job.record is not None:
        write_order(paths, RecordOrder(job.record.uri, job.record.interval))
    prepare_channels(plan, checked.orders, paths)


def plan_text(plan: LaunchPlan) -> str:
    """Returns plan.json."""
    return msgspec.json.format(msgspec.json.encode(plan)).decode() + "\n"


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


def with_pythons(plan: LaunchPlan, pythons: Mapping[str, str]) -> LaunchPlan:
    """Returns the plan with interpreters of their own for the programs of some groups."""
    groups = tuple(
        msgspec.structs.replace(group, python=pythons[group.name]) if group.name in pythons else group
        for group in plan.groups
    )
    return msgspec.structs.replace(plan, groups=groups)

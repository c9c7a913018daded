"""Fills the directory of a run: the job, a snapshot of the code, the tree of every host, plan and secret."""

from __future__ import annotations

import fnmatch
import os
import secrets
import shutil
import stat
from pathlib import Path

import msgspec

from headrace.engines.local.certifying import make_certificates
from headrace.instance import Channel, build_tree
from headrace.instance.certificates import write_certificates
from headrace.instance.launch import LaunchPlan, write_plan
from headrace.job import Job
from headrace.runs import RunPaths

SKIPPED = (".git", "__pycache__", ".venv*", ".headrace")


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
    snapshot(job.base_path / job.source_dir, paths.code, leave_out=paths.root.parent)
    secret = secrets.token_hex(32)
    certificates = make_certificates(plan)
    for host in plan.hosts:
        build_tree(
            host.base_dir,
            current_host=host.name,
            groups=plan.groups,
            code=paths.code,
            job_name=plan.job_name,
            entry_point=plan.entry_point,
            hyperparameters=job.hyperparameters,
            channels={
                name: Channel(
                    source=channel.local_path(job.base_path),
                    content_type=channel.content_type,
                    input_mode=job.input_mode_of(name),
                    distribution=channel.distribution,
                )
                for name, channel in job.channels_of(host.group).items()
            },
            distribution_groups=_world_of(plan, host.group),
            network_interface_name="lo",
        )
        write_plan(plan, host.base_dir, secret)
        if plan.encrypt:
            write_certificates(host.base_dir, certificates[host.name])


def _world_of(plan: LaunchPlan, group: str) -> tuple[str, ...]:
    """Groups that a host finds named as the distribution's: those of its own world, else those of all worlds."""
    own = plan.distribution_of(group)
    return own.groups if own else tuple(name for world in plan.distributions for name in world.groups)


def snapshot(source: Path, target: Path, leave_out: Path) -> None:
    """Copies a directory of code, so that a run keeps what it ran.

    Left out: version control, caches, virtual environments, the directory of all runs, and what is neither file nor
    directory nor symlink. A relative symlink that leads out of the directory is made absolute.

    Args:
        source: the user's directory.
        target: where the copy goes; it must not exist.
        leave_out: a directory that is not copied, wherever it is met.
    """
    target.mkdir()
    root, runs = source.resolve(), leave_out.resolve()
    for folder, names, files in os.walk(source):
        here = Path(folder)
        there = target / here.relative_to(source)
        kept = [name for name in names if not _skipped(name) and (here / name).resolve() != runs]
        for name in kept + files:
            path, copy = here / name, there / name
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                link = Path(os.readlink(path))  # noqa: PTH115  (Path.readlink is the same)
                inside = not link.is_absolute() and (here / link).resolve().is_relative_to(root)
                copy.symlink_to(link if inside or link.is_absolute() else (here / link).resolve())
            elif stat.S_ISDIR(mode):
                copy.mkdir()
            elif stat.S_ISREG(mode) and not _skipped(name):
                shutil.copy2(path, copy)
        names[:] = [name for name in kept if not (here / name).is_symlink()]


def _skipped(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in SKIPPED)

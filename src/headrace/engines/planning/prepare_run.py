"""Fills the directory of a run: the job, a snapshot of the code, the tree of every host, plan and secret.

A folder of code says what is left out of it in `.headraceignore`, else in `.gitignore`, in the form that git reads;
only the file in the folder itself counts. An empty `.headraceignore` leaves nothing out. What is much, or was left out
by a file that was not written for headrace, is told before it is copied.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

import msgspec

from headrace.engines.planning.host_certificates import make_certificates
from headrace.engines.planning.plan_artefacts import prepare_artefacts
from headrace.engines.planning.plan_channels import prepare_channels, tree_channels
from headrace.errors import UsageError
from headrace.hosting.helpers.store_record import RecordOrder, write_order
from headrace.hosting.inputs.host_facts import with_pythons
from headrace.hosting.inputs.requirements import DEFAULT, VirtualEnvironment, environment_of, prepare_install
from headrace.hosting.inputs.source_code import Ignored, bring_code, code_digest, entries_of, nothing_ignored
from headrace.instance import build_tree, storage
from headrace.instance.channels.stage_orders import ChannelOrder
from headrace.instance.launch_plan import HostPlan, LaunchPlan, plan_text, write_certificates, write_plan, write_secret
from headrace.instance.paths import DEFAULT_BASE
from headrace.job import Job
from headrace.job.model.path_types import is_archive, is_script
from headrace.log_setup import tell_user
from headrace.runs import RunPaths, runs_dir


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


IGNORE_FILES = (".headraceignore", ".gitignore")
MUCH = 50_000_000  # bytes of code that are told before they are copied
NAMED = 3


def ignore_file(folder: Path) -> Path | None:
    """Returns the file that says what is left out of a folder of code; None for no such file."""
    return next((folder / name for name in IGNORE_FILES if (folder / name).is_file()), None)


def ignored_in(folder: Path) -> Ignored:
    """Returns what a folder of code says is left out of it.

    Raises:
        UsageError: its ignore file holds what git would not understand.
        OSError: it cannot be read.
    """
    file = ignore_file(folder)
    if file is None:
        return nothing_ignored(folder)
    import pathspec

    try:
        rules = pathspec.GitIgnoreSpec.from_lines(file.read_text(encoding="utf-8").splitlines())
    except ValueError as error:
        raise UsageError(f"{file}: {error}", "write it as git reads a .gitignore, in UTF-8") from error
    return lambda name, is_folder: rules.match_file(f"{name}/" if is_folder else name)


def code_notes(job: Job, runs: Path) -> Iterator[str]:
    """Yields what a user should know before the code of a job is copied: how much it is, when it is much, what a
    `.gitignore` leaves out, and what cannot be copied.

    Args:
        job: the job.
        runs: the folder of all runs, which is not copied.

    Raises:
        UsageError, OSError: the code cannot be read.
    """
    named = [job.source_dir] if job.source_dir and not _is_packed(job.source_dir) else []
    for text in (*named, *job.dependencies):
        folder = job.base_path / text
        if not folder.is_dir():
            continue
        sizes: dict[str, int] = {}
        special, closed = list[str](), list[str]()
        ignored, left_out = _noted(ignored_in(folder))
        for name, path, link in entries_of(folder, runs, ignored):
            if link is None and path.is_file():
                sizes[name.parts[0]] = sizes.get(name.parts[0], 0) + path.stat().st_size
            elif link is None and not path.is_dir():
                special.append(str(name))
            elif link is not None and _is_closed(path):
                closed.append(str(name))
        total = sum(sizes.values())
        if total > MUCH:
            largest = sorted(sizes.items(), key=lambda item: -item[1])[:NAMED]
            names = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in largest if size > total / 100)
            yield (
                f"warning: {folder} goes to the run as code, {total / 1e6:.0f} MB, of these {names}; "
                f"data belong into `inputs`, and what a run does not need into {folder / IGNORE_FILES[0]} "
                "(in the form of .gitignore)"
            )
        if special:
            yield f"code: {folder}: left out, neither files nor folders: {_first(special)}"
        if closed:
            yield f"code: {folder}: links to what this user may not look at are copied as links: {_first(closed)}"
        file = ignore_file(folder)
        if left_out and file is not None and file.name != IGNORE_FILES[0]:  # which was not written for headrace
            yield (
                f"code: {file} leaves out {_first(left_out)}; "
                f"{IGNORE_FILES[0]} counts in its place, and leaves nothing out when it is empty"
            )


def _is_closed(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def check_entry_points(job: Job, code: Path) -> None:
    """Checks that no script of the job was left out of its code by an ignore file. Raises UsageError."""
    if not job.source_dir or _is_packed(job.source_dir):
        return
    folder = job.base_path / job.source_dir
    for group in job.hosts:
        script = job.in_code(job.entry_point_of(group))
        if script and is_script(script) and (folder / script).exists() and not (code / script).exists():
            raise UsageError(
                f"entry_point {script}: {ignore_file(folder)} leaves it out of the code",
                f"name it there with `!{script}`; an empty {IGNORE_FILES[0]} beside it leaves nothing out",
            )


def _noted(ignored: Ignored) -> tuple[Ignored, list[str]]:
    """Returns rules that note what they leave out, and the notes."""
    left_out: list[str] = []

    def noting(name: str, is_folder: bool) -> bool:
        says_so = ignored(name, is_folder)
        if says_so:
            left_out.append(name)
        return says_so

    return noting, left_out


def _is_packed(source: str) -> bool:
    return storage.is_s3(source) or is_archive(source)

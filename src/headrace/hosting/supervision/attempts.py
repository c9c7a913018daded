"""Between two attempts of a job, and after the last: what is tried again, what is cleared, and why the job failed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from headrace.errors import FAILURE_CHARACTERS, HeadraceError
from headrace.hosting.inputs.channel_area import remove_views
from headrace.instance import read_failure
from headrace.instance.launch_plan import FEED_NAME, LaunchPlan, Retry, channel_dir
from headrace.instance.paths import TreePaths
from headrace.instance.tree import copy_code
from headrace.runs import Cause, EventWriter, Run, RunPaths, Status
from headrace.runs.events import AttemptStarted, FailureWritten, SecondaryStatus, StatusChanged

LINKED_TREE = "linked-tree"  # in the folder `engine`: the host's tree is one of links to that of a container


def is_tried_again(retry: Retry, attempt: int, status: Status, cause: Cause | None) -> bool:
    """Tells whether a job gets another attempt. Only a failed one does, not one that was stopped.

    Args:
        retry: what the job wants.
        attempt: number of the attempt that has ended, from 1.
        status, cause: how it ended.
    """
    if status is not Status.FAILED or attempt > retry.attempts:
        return False
    return retry.any or (cause is not None and cause.infrastructure)


def restarting(retry: Retry, number: int, after: str) -> str:
    """Returns in words that this attempt comes, after what has failed the one before it."""
    of = f" of {retry.attempts + 1}" if number <= retry.attempts + 1 else ""  # the platform has a number of its own
    return f"Attempt {number}{of}, after: {after}"


def await_instances(events: EventWriter, retry: Retry, number: int, cause: Cause | None, at: float) -> None:
    """Writes that an attempt is to come once the platform has given the run other instances.

    Args:
        events: the engine's event file.
        retry: what the job wants.
        number: of the attempt.
        cause: why the one before it ended.
        at: when it ended, seconds since the epoch: the clocks of its instances stop then.
    """
    message = restarting(retry, number, f"{cause}")
    for status in (SecondaryStatus.RESTARTING, SecondaryStatus.PENDING):
        events.write(StatusChanged(t=at, status=status, message=message))


def clear(hosts: Iterable[str], plan: LaunchPlan, paths: RunPaths) -> None:
    """Removes what a failed attempt has made, except its checkpoints, logs, events and metrics; code is copied anew.

    Args:
        hosts: names of the hosts whose trees are on this machine.
        plan: the launch plan.
        paths: the run's directory, where the trees are.

    Raises:
        HeadraceError: the code cannot be copied.
        OSError: something cannot be removed.
    """
    remove_views(paths)
    linked = (paths.engine / LINKED_TREE).exists()
    for host in hosts:
        tree = TreePaths(paths.host(host))
        for folder in (tree.model, tree.output_data, tree.output_intermediate):
            _empty(folder.readlink() if linked and folder.is_symlink() else folder)
        _remove(tree.code)  # a new container would have it as it was sent
        try:
            if not plan.isolation.shared_code:
                copy_code(paths.code, tree.code)
        except OSError as error:
            raise HeadraceError(f"{host}: the code could not be copied for another attempt: {error}") from error
        _remove(tree.failure)
        (channel_dir(tree.base) / FEED_NAME).unlink(missing_ok=True)


def _empty(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():  # a program has put a link to other files into its place
        folder.unlink(missing_ok=True)
        folder.mkdir(parents=True)
        return
    for entry in folder.iterdir():
        _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def failure_reason(plan: LaunchPlan, paths: RunPaths, cause: Cause | None) -> str:
    """Returns why a job failed, at most 1024 characters.

    What the user's program wrote to output/failure comes first: that of the host of the first cause, else that of
    another host. Without one it is the cause.
    """
    own = _written_by_headrace(paths)
    hosts = sorted(plan.hosts, key=lambda host: cause is None or host.name != cause.host)
    for host in hosts:
        text = read_failure(paths.host(host.name))
        if text.strip() and text != own.get(host.name):
            return text
    return str(cause or "")[:FAILURE_CHARACTERS]


def _written_by_headrace(paths: RunPaths) -> dict[str, str]:
    """Returns what headrace wrote to output/failure in the last attempt, by host."""
    written: dict[str, str] = {}
    for event in Run(paths).events():
        if isinstance(event, AttemptStarted):
            written.clear()
        elif isinstance(event, FailureWritten):
            written[event.host] = event.text
    return written

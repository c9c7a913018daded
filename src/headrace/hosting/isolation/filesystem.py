"""The mounts of one instance, made in its own mount namespace: nothing of them is seen or left outside.

    /opt/ml           the host's tree; the rest of /opt stays as it is
    /opt/ml/input     its views of its channels, see `channel_views`
    /opt/ml/code      where hosts share the run's snapshot of the code: that, and what this host changes above it
    (anywhere)        its checkpoints once more, at the job's checkpoint_local_path
    /tmp              a directory of the run's temporary files; what the job names below /tmp is shown in it
    /dev/shm          empty, in memory; gone with the instance
    /etc/hosts        every host of the job
    /etc/hostname     the host's name
    /etc/resolv.conf  name servers that can be reached, in a network of the job's own
    /proc             the instance's own processes

/sys stays the machine's, for its cgroups; /sys/class/net therefore lists the machine's interfaces.
Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.hosting.isolation import channel_views
from headrace.hosting.isolation.network_layout import HOSTS, RESOLVER, Layout
from headrace.hosting.isolation.syscalls import (
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    bind,
    mount,
)
from headrace.private_folders import open_private

OPT = Path("/opt")
TREE = OPT / "ml"
CODE = "code"  # as headrace.instance.paths has it


def keep_mounts_inside() -> None:
    """Stops what is mounted in this namespace from showing up in another. Raises OSError."""
    mount("none", "/", flags=MS_REC | MS_SLAVE)


def arrange(layout: Layout, host: str, scratch: str) -> None:
    """Makes all mounts but /proc, which needs a process of the new PID namespace.

    Args:
        layout: the job's isolation.
        host: the host.
        scratch: folder of the run's temporary files. It is reached by a descriptor, after a look at its owner.

    Raises:
        OSError: a mount cannot be made, or the folder is not this user's alone.
    """
    keep_mounts_inside()
    instance = layout.instance(host)
    _show_tree(instance.tree)
    for view in instance.views:
        channel_views.show(view, TREE, layout.overlays, layout.user_namespace)
    if instance.code:
        own = Path(instance.tree, CODE), Path(instance.code_work)
        own[0].mkdir(exist_ok=True)
        channel_views.overlay([instance.code], TREE / CODE, own, layout.user_namespace)
    held = open_private(scratch)
    folder = Path(f"/proc/self/fd/{held}")
    name = folder / f"{host}.name"
    name.write_text(f"{host}\n")
    files = folder / layout.files  # which is that of an absolute path alone
    for source, target in (
        (str(files / "hosts"), HOSTS),
        (str(files / "resolv.conf"), RESOLVER),
        (str(name), "/etc/hostname"),
    ):
        # A link that leads nowhere does not count. Without a network of the job's own there is no resolv.conf.
        if os.path.exists(source) and os.path.exists(target):
            bind(source, target)
    _private_tmp(folder / host, layout.visible)
    os.close(held)
    if instance.checkpoints:
        _show(f"{TREE}/checkpoints", Path(instance.checkpoints))
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def mount_proc() -> None:
    """Shows this PID namespace in /proc. Raises OSError."""
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _show_tree(tree: str) -> None:
    if not TREE.is_dir():
        _cover(OPT, TREE.name)
        TREE.mkdir()
    bind(tree, str(TREE))


def _show(source: str, target: Path) -> None:
    """Shows a directory at a path that the machine need not have."""
    if not target.is_dir():
        above = next(parent for parent in target.parents if parent.is_dir())
        if above == Path("/"):
            _new_root(but=target.parts[1])
        elif not above.is_relative_to("/tmp"):  # that one is the instance's own
            _cover(above, target.relative_to(above).parts[0])
        target.mkdir(parents=True)
    bind(source, str(target))


def _new_root(but: str) -> None:
    """Gives this process a root directory of its own, which shows all that is in the machine's but one name."""
    made = Path("/dev/shm")  # is covered by the instance's own later
    mount("tmpfs", str(made), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    _show_entries(Path("/"), made, but)
    os.chdir(made)
    mount(".", "/", flags=MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def _cover(folder: Path, but: str) -> None:
    """Puts an empty directory over one that shows all that was in it but one: there a mount point can be made."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    mount("tmpfs", str(folder), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    _show_entries(Path(f"/proc/self/fd/{descriptor}"), folder, but)
    os.close(descriptor)


def _show_entries(before: Path, folder: Path, but: str) -> None:
    """Shows what is in one directory, all but one name, in another one, which is empty."""
    for entry in sorted(before.iterdir()):
        if entry.name == but:
            continue
        place = folder / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
            continue
        if entry.is_dir():
            place.mkdir()
        else:
            place.touch()
        bind(str(entry), str(place))


def _private_tmp(directory: Path, visible: tuple[str, ...]) -> None:
    directory.mkdir(exist_ok=True)
    directory.chmod(0o1777)
    kept = [(path, os.open(path, os.O_PATH)) for path in visible]
    bind(str(directory), "/tmp")
    for path, descriptor in kept:
        source, place = f"/proc/self/fd/{descriptor}", Path(path)
        if os.path.isdir(source):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        bind(source, path)
        os.close(descriptor)

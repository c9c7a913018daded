"""The mounts of one instance, made in its own mount namespace: nothing of them is seen or left outside.

    /opt/ml           the host's tree; the rest of /opt stays as it is
    /opt/ml/input     its views of its channels
    /opt/ml/code      where hosts share the run's snapshot of the code: that, and what this host changes above it
    (anywhere)        its checkpoints once more, at the job's checkpoint_local_path
    /tmp              a directory of the run's temporary files; what the job names below /tmp is shown in it
    /dev/shm          empty, in memory; gone with the instance
    /etc/hosts        every host of the job
    /etc/hostname     the host's name
    /etc/resolv.conf  name servers that can be reached, in a network of the job's own
    /proc             the instance's own processes

A view of a channel is the instance's own, so that nothing it does to it reaches the data:

    writable    an overlay: the data below, what the instance changes in a folder of its own above
    read-only   a read-only bind mount with all that is mounted below it; a write ends with EROFS

A channel gets a read-only view when FastFile asks for it, as on the service, and where an overlay cannot be had: this
machine allows none, something is mounted below the data (an overlay would not show it), or the instance's own folder
lies inside the data. The links of a shard lead to /opt/ml/input/sources/<channel>, which is such a view of the data
that they stand for.

/sys stays the machine's, for its cgroups; /sys/class/net therefore lists the machine's interfaces.
Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.hosting.isolation.network_layout import HOSTS, RESOLVER, Layout, View
from headrace.hosting.isolation.syscalls import (
    MS_BIND,
    MS_MOVE,
    MS_NOATIME,
    MS_NODEV,
    MS_NODIRATIME,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_RELATIME,
    MS_REMOUNT,
    MS_SLAVE,
    bind,
    mount,
)
from headrace.instance.channels.mountinfo import read_mounts
from headrace.private_folders import open_private

DATA, SOURCES = (
    "input/data",
    "input/sources",
)  # of /opt/ml; as headrace.instance.channels has them, which needs more
_KEPT = {  # of a mount that is mounted once more; the kernel lets a user namespace take none of them away
    os.ST_NOSUID: MS_NOSUID,
    os.ST_NODEV: MS_NODEV,
    os.ST_NOEXEC: MS_NOEXEC,
    os.ST_NOATIME: MS_NOATIME,
    os.ST_NODIRATIME: MS_NODIRATIME,
    os.ST_RELATIME: MS_RELATIME,
}


def show(view: View, base: Path, overlays: bool, user_namespace: bool) -> None:
    """Mounts the view of one channel. Raises OSError.

    Args:
        view: the channel.
        base: the instance's /opt/ml.
        overlays: whether this machine allows overlays.
        user_namespace: whether the instance is in a user namespace.
    """
    own = Path(view.own) if view.own and overlays else None
    places = [(view.source, base / DATA / view.channel, "data")]
    if view.root_file and os.path.exists(view.root_file):
        places.append((Path(view.root_file).read_text(), base / SOURCES / view.channel, "sources"))
    for source, target, name in places:
        target.mkdir(parents=True, exist_ok=True)
        layers = [source] if name == "sources" or not view.links else [view.links, source]
        above = (own / name / "upper", own / name / "work") if own is not None else None
        if overlays and not _is_crossed(source, own) and (above is not None or len(layers) > 1):
            overlay(layers, target, above, user_namespace)
        else:
            bind_read_only(source, target)


def overlay(layers: Sequence[str], target: Path, own: tuple[Path, Path] | None, user_namespace: bool) -> None:
    """Mounts an overlay. Raises OSError.

    A directory of the layers cannot be renamed in it (EXDEV, upon which `mv` copies); so whatever is below a name that
    the layers do not have is in `own` as it is seen, with all its bytes.

    Args:
        layers: directories that are never written to, the uppermost first; two at least without `own`.
        target: an existing directory.
        own: directory for all that is written, and one in which the kernel prepares it, on one file system; made if
            need be. Without them the overlay is read-only.
        user_namespace: whether this process is root of a user namespace only.
    """
    # By descriptors: commas and colons in a path would be taken for separators, and many paths are too long.
    held = [os.open(layer, os.O_PATH | os.O_DIRECTORY) for layer in layers]
    try:
        options = ["lowerdir=" + ":".join(f"/proc/self/fd/{each}" for each in held)]
        if own is not None:
            for name, folder in zip(("upper", "work"), own, strict=True):
                folder.mkdir(parents=True, exist_ok=True)
                held.append(os.open(folder, os.O_PATH | os.O_DIRECTORY))
                options.append(f"{name}dir=/proc/self/fd/{held[-1]}")
            own[0].chmod(Path(layers[-1]).stat().st_mode & 0o7777 | 0o700)
        # trusted.* is for the machine's root only. Renamed directories, and files with changed modes, that are
        # references to the layers would be empty for whoever reads `own` later; userxattr has none.
        options.append("userxattr" if user_namespace else "redirect_dir=off")
        flags = MS_NOSUID | MS_NODEV | (MS_RDONLY if own is None else 0)
        mount("overlay", str(target), "overlay", flags, ",".join(options))
    finally:
        for descriptor in held:
            os.close(descriptor)


def bind_read_only(source: str, target: Path) -> None:
    """Shows a directory, with what is mounted in it, at another place too, where nobody can write. Raises OSError."""
    bind(source, str(target))
    for point in [str(target), *_mounted_below(str(target))]:
        has = os.statvfs(point).f_flag
        kept = sum(flag for bit, flag in _KEPT.items() if has & bit)
        mount("none", point, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def try_overlay(folder: Path, user_namespace: bool) -> None:
    """Does in a small overlay what programs do to their data.

    Args:
        folder: an empty directory of the file system where instances have their own folders.
        user_namespace: whether this process is root of a user namespace only.

    Raises:
        OSError: this machine allows no overlay, or it does not hold.
    """
    below, target = folder / "below", folder / "target"
    (below / "folder").mkdir(parents=True)
    target.mkdir()
    for name in ("changed", "removed", "folder/inside"):
        (below / name).write_text("as it was")
    overlay([str(below)], target, (folder / "own" / "upper", folder / "own" / "work"), user_namespace)
    (target / "changed").write_text("new")
    (target / "removed").unlink()
    (target / "folder" / "inside").unlink()
    (target / "folder").rmdir()
    (target / "folder").mkdir()
    kept = sorted(path.name for path in below.rglob("*")) == ["changed", "folder", "inside", "removed"]
    seen = sorted(path.name for path in target.rglob("*")) == ["changed", "folder"]
    if not (kept and seen and (below / "changed").read_text() == "as it was"):
        raise OSError("changes in an overlay are lost, or reach the data below it")


def _is_crossed(source: str, own: Path | None) -> bool:
    """Whether an overlay of a directory would miss what is mounted in it, or be written into itself."""
    real = os.path.realpath(source)
    inside = own is not None and Path(os.path.realpath(own)).is_relative_to(real)
    crossed = inside or any(True for _ in _mounted_below(real))
    if crossed and own is not None:
        why = "the run's own folder lies in it" if inside else "another file system is mounted in it"
        print(f"{source} is shown read-only: {why}", file=sys.stderr, flush=True)
    return crossed


def _mounted_below(folder: str) -> Iterator[str]:
    """Yields the mount points inside a directory, which are not it itself; `folder` has no links in it."""
    prefix = folder.rstrip("/") + "/"
    yield from (each.point for each in read_mounts() if each.point.startswith(prefix) and each.point != prefix)


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
        show(view, TREE, layout.overlays, layout.user_namespace)
    if instance.code:
        own = Path(instance.tree, CODE), Path(instance.code_work)
        own[0].mkdir(exist_ok=True)
        overlay([instance.code], TREE / CODE, own, layout.user_namespace)
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

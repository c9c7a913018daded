"""What an instance sees of its input channels: a view of its own, so that nothing it does to them reaches the data.

    writable    an overlay: the data below, what the instance changes in a folder of its own above
    read-only   a read-only bind mount with all that is mounted below it; a write ends with EROFS

A channel gets a read-only view when FastFile asks for it, as on the service, and where an overlay cannot be had: this
machine allows none, something is mounted below the data (an overlay would not show it), or the instance's own folder
lies inside the data.

The links of a shard lead to /opt/ml/input/sources/<channel>, which is such a view of the data that they stand for.

Everything is made in the instance's own mount namespace, so no mount is left. Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.hosting.isolation.network_layout import View
from headrace.hosting.isolation.syscalls import (
    MS_BIND,
    MS_NOATIME,
    MS_NODEV,
    MS_NODIRATIME,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_RELATIME,
    MS_REMOUNT,
    bind,
    mount,
)
from headrace.instance.channels.mounts import read_mounts

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

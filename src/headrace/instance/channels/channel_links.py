"""What a host finds under a channel's name: a link to its share, made when the share is complete.

Where links to data of this machine lead in an instance that has a file system of its own.

Such an instance sees the data in a view of its own, at another place, so that what it writes through a link does not
reach them. Two kinds of links need care:

* those of a shard lead to files anywhere. All of them lie in one directory (`places`), which the view shows;
* those inside a folder that is shown as a channel: a relative one that leads out of it finds nothing at the other
  place, and an absolute one into it would lead to the data. `redirected` says what each should be.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.instance.channels.stage_orders import ChannelOrder, StageOrder
from headrace.instance.paths import TreePaths


def place(order: StageOrder, channel: ChannelOrder, data: Path) -> None:
    """Links the shares of a channel into the trees of its hosts that are of this machine.

    Args:
        order: the run's order.
        channel: the channel.
        data: folder whose children ``0``, ``1`` ... are the shares of these hosts.

    Raises:
        OSError: a link cannot be made; FileExistsError if something else has the channel's name.
    """
    for host in order.hosts_of(channel):
        link(TreePaths(order.bases[host]).channel(channel.name), data / str(channel.place(host)))


def link(path: Path, target: Path) -> None:
    """Makes a symlink to an absolute target. One that is there already must lead to the same place."""
    try:
        path.symlink_to(target)
    except FileExistsError:
        if path.is_symlink() and path.readlink() == target:
            return
        raise


def unlink_pipes(order: StageOrder, channel: ChannelOrder) -> None:
    """Removes the FIFOs of a channel from the trees of its hosts that are of this machine."""
    for host in order.hosts_of(channel):
        folder = TreePaths(order.bases[host]).input_data
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for path in [Path(entry.path) for entry in entries if entry.name.startswith(f"{channel.name}_")]:
                if path.is_fifo():
                    path.unlink(missing_ok=True)


ROOT = "root"  # in a channel's area: the directory that holds what its links lead to


@dataclass(frozen=True)
class Places:
    """Files of this machine.

    Attributes:
        root: the deepest directory that holds all of them; empty when there are none.
        real: path of a file, as it was named, to its path without links.
    """

    root: str
    real: Mapping[str, str]

    def below(self, directory: str, path: str) -> str:
        """Returns where a file is when `root` is shown as another directory."""
        return directory + self.real[path][len(self.root.rstrip("/")) :]


def places(paths: Iterable[str]) -> Places:
    """Finds out where files really are. A folder is asked for once, a file only whether it is a link."""
    folders: dict[str, str] = {}
    real = {}
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        path_there = os.path.join(folders[folder], name)  # noqa: PTH118
        real[path] = os.path.realpath(path_there) if os.path.islink(path_there) else path_there  # noqa: PTH114
    parents = {os.path.dirname(path) for path in real.values()}  # noqa: PTH120
    return Places(os.path.commonpath(parents) if parents else "", real)


def redirected(folder: str) -> Iterator[tuple[str, str]]:
    """Yields the links inside a folder that would lead elsewhere in a view of it, with what they should hold there.

    Args:
        folder: an absolute path without links.

    Yields:
        The link's path below the folder, and its new content.
    """
    waiting = [folder]
    while waiting:
        directory = waiting.pop()
        listed: list[os.DirEntry[str]] = []
        # What may not be read, or has just been removed, the programs cannot read either.
        with contextlib.suppress(PermissionError, FileNotFoundError), os.scandir(directory) as entries:
            listed = list(entries)
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.is_symlink():
                target = os.readlink(entry.path)  # noqa: PTH115
                at = os.path.normpath(os.path.join(directory, target))  # noqa: PTH118
                inside = at == folder or at.startswith(folder.rstrip("/") + "/")
                if inside == os.path.isabs(target):  # noqa: PTH117
                    name = os.path.relpath(entry.path, folder)
                    yield name, os.path.relpath(at, directory) if inside else os.path.join(directory, target)  # noqa: PTH118


def redirect(folder: str, layer: Path) -> bool:
    """Makes a directory that, laid over a folder, mends its links. Returns whether there are any, else makes nothing.

    Args:
        folder: an absolute path without links.
        layer: the directory; it does not exist.

    Raises:
        OSError: the folder cannot be read, or the directory not be written.
    """
    for name, target in redirected(folder):
        path = layer / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            for above in [path.parent, *path.parent.parents]:  # the uppermost layer's attributes are those that count
                if not above.is_relative_to(layer):
                    break
                shutil.copystat(os.path.join(folder, above.relative_to(layer)), above)  # noqa: PTH118
        path.symlink_to(target)
    return layer.is_dir()

"""File: a channel's objects become files of this machine, all of them or none.

    <area>/listing.json   the files in order: name, place, size and etag of each; number i is of share i modulo shares
    <area>/root           the directory of this machine into which the links of the shares lead, see `channel_links`
    <area>/incoming/<n>/  share n, as long as files are missing
    <area>/data/<n>/      share n, complete

`incoming` is renamed to `data` when every file is there with the size that was listed, so no reader sees a part.
A download after an interruption keeps the files of `incoming` that are still what is listed; each of them is
whole, because a file under its own name always is (`Store.download`). Data of this machine are not copied: their
shares hold links.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError, StorageError
from headrace.instance.channels import channel_links, object_listing
from headrace.instance.channels.object_listing import Item, list_items
from headrace.instance.channels.stage_orders import ChannelOrder
from headrace.instance.storage import Object, Store, is_s3, is_temporary

DATA = "data"
INCOMING = "incoming"
RESERVE = 16 << 20  # bytes of the disk that data do not take


@dataclass
class Tally:
    """How far a channel is.

    Attributes:
        channel: its name.
        files_total, bytes_total: all of it.
        files, bytes: what is there.
    """

    channel: str
    files_total: int = 0
    bytes_total: int = 0
    files: int = 0
    bytes: int = 0
    on_change: Callable[[Tally], object] = field(default=lambda _: None, repr=False)

    def add(self, source: Object) -> None:
        """One more file is there."""
        self.files += 1
        self.bytes += source.size
        self.on_change(self)


def fill(
    channel: ChannelOrder,
    area: Path,
    store: Store,
    on_change: Callable[[Tally], object] = lambda _: None,
    sources: str = "",
    places: Collection[int] | None = None,
) -> Tally:
    """Makes `<area>/data` complete; what is complete already is left as it is.

    Args:
        channel: a File channel, or one of files of this machine.
        area: the channel's own folder.
        store: where the objects are.
        on_change: told of every file that has come.
        sources: directory at which hosts see `<area>/root`, the one that holds all data of this machine; empty when
            they see the data where they are.
        places: the shares that are wanted; all by default.

    Returns:
        What there is of these shares.

    Raises:
        HeadraceError: it could not be done; the message names the channel and the object.
    """
    complete = (area / DATA).is_dir()
    items = object_listing.load(area) if complete else list_items(channel, store)
    places = range(channel.shares) if places is None else places
    wanted = [item for index, item in enumerate(items) if index % channel.shares in places]
    tally = Tally(channel.name, len(wanted), sum(item.source.size for item in wanted), on_change=on_change)
    if complete:
        tally.files, tally.bytes = tally.files_total, tally.bytes_total
        return tally
    incoming = area / INCOMING
    paths = {item.name: incoming / str(index % channel.shares) / item.name for index, item in enumerate(items)}
    try:
        kept = _keep(channel, area, paths, items, places)
        for place in places:
            (incoming / str(place)).mkdir(parents=True, exist_ok=True)
        object_listing.save(items, area)
        real = (
            channel_links.places(item.source.uri for item in wanted if not is_s3(item.source.uri)) if sources else None
        )
        if real is not None and real.root:
            (area / channel_links.ROOT).write_text(real.root)
        missing: list[tuple[Object, Path]] = []
        for item in wanted:
            path = paths[item.name]
            if item.name not in kept and is_s3(item.source.uri):
                missing.append((item.source, path))
                continue
            if item.name not in kept:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(item.source.uri if real is None else real.below(sources, item.source.uri))
            tally.add(item.source)
        if missing:
            _check_room(area, sum(source.size for source, _ in missing))
            store.download_all(missing, tally.add)
        for source, path in missing:
            size = path.stat().st_size
            if size != source.size:
                raise StorageError(f"{source.uri}: {size} bytes came, {source.size} were listed")
        incoming.rename(area / DATA)
    except HeadraceError as error:
        raise named(channel.name, error) from error
    except OSError as error:
        raise named(channel.name, StorageError(f"{error.filename or area}: {error.strerror or error}")) from error
    return tally


def named(channel: str, error: HeadraceError) -> HeadraceError:
    """Returns an error that says which channel it is about."""
    prefix = f"channel {channel!r}: "
    return error if error.message.startswith(prefix) else type(error)(prefix + error.message, error.hint)


def _keep(
    channel: ChannelOrder, area: Path, paths: Mapping[str, Path], items: Sequence[Item], places: Collection[int]
) -> set[str]:
    """Removes what an interrupted download left and this one does not want. Returns the names of the rest."""
    try:
        before = {
            item.name: (item.source, index % channel.shares) for index, item in enumerate(object_listing.load(area))
        }
    except (FileNotFoundError, msgspec.DecodeError):  # nothing was filled in so far
        before = {}
    same = {
        paths[item.name]: item
        for index, item in enumerate(items)
        if is_s3(item.source.uri)
        and index % channel.shares in places
        and before.get(item.name) == (item.source, index % channel.shares)
    }
    kept = set()
    for path in (Path(folder, name) for folder, _, names in os.walk(area / INCOMING) for name in names):
        item = same.get(path)
        if item is not None and not is_temporary(path.name) and path.stat().st_size == item.source.size:
            kept.add(item.name)
        else:
            path.unlink()
    if not kept:
        shutil.rmtree(area / INCOMING, ignore_errors=True)
    return kept


def _check_room(area: Path, wanted: int) -> None:
    free = shutil.disk_usage(area).free
    if wanted + RESERVE > free:
        raise StorageError(
            f"{wanted / 1e9:.3f} GB are to be downloaded, and {area} has {free / 1e9:.3f} GB left",
            "the disk is full: make room, set HEADRACE_HOME to a larger disk, or use input_mode: FastFile or Pipe",
        )

"""How far a copy has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CopyProgress:
    """How far a copy has come.

    Attributes:
        objects_done, objects: that are there, of all.
        bytes_done, bytes: likewise; the parts of an unfinished object count.
        bytes_copied: that were not there before.
    """

    objects_done: int
    objects: int
    bytes_done: int
    bytes: int
    bytes_copied: int


@dataclass
class CopyCount:
    """Counts, and tells of it.

    Attributes:
        objects, bytes: of the whole copy.
        tell: is told after every object and part.
        done, bytes_done: objects that are there.
        copied: bytes of those that were not there before.
        in_parts: bytes of the parts of an unfinished object.
    """

    objects: int
    bytes: int
    tell: Callable[[CopyProgress], object]
    done: int = 0
    bytes_done: int = 0
    copied: int = 0
    in_parts: int = 0

    def object(self, size: int, new: bool) -> None:
        """Notes an object that is there, and was not before if it is `new`."""
        self.done += 1
        self.bytes_done += size
        self.copied += size if new else 0
        self._tell()

    def part(self, size: int) -> None:
        """Notes a part."""
        self.in_parts += size
        self._tell()

    def whole_of_parts(self, size: int) -> None:
        """Notes that the object is there whose parts were noted."""
        self.in_parts = 0
        self.object(size, True)

    def _tell(self) -> None:
        copied = self.copied + self.in_parts
        self.tell(CopyProgress(self.done, self.objects, self.bytes_done + self.in_parts, self.bytes, copied))

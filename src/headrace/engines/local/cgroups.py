"""Control groups: where this process may make some, and those of one run, one for every instance.

A group is made below the group in which headrace itself runs, so that every limit that was set from outside (by a
container, Slurm, systemd) still holds. cgroup v1 has one hierarchy for each controller. In v2 a group that has
processes cannot have limited children (the rule of no internal processes), so there the nearest ancestor is taken
that lets its children be limited and that this user may write to: the delegated subtree of a user, or the root.

    PARENT/headrace-HASH-SPACE-PID-START/algo-1     HASH of the run id; PID and START of the supervisor, SPACE its pid
                                                    namespace

The name tells the supervisor of a group: `sweep` removes those whose supervisor does not run any more. Containers may
share this part of the file system and do not see each other's processes, so those of another pid namespace are left.
The kernel refuses to remove a group that has a process, so a sweep can never take one from a process that lives. A run
also keeps a list of its groups in its directory until they are gone (`RECORD`), since the next start may be in another
session, with another PARENT.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.control_group import memberships
from headrace.instance.channels.mountinfo import MOUNTS_FILE, read_mounts
from headrace.processes.process_table import is_running, look

MEMORY = "memory"
CPU = "cpu"
RECORD = "engine/control-groups"  # in the directory of a run: its own group in every hierarchy, one a line
REMOVE_SECONDS = 2.0  # for processes that were just killed to leave their group
_POLL = 0.01
_NAME = re.compile(r"headrace-[0-9a-f]{12}-([0-9]+)-([0-9]+)-([0-9]+)")
_LIMITS = {1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", None), 2: ("memory.max", "memory.swap.max", "0")}
"""Files of a limit of memory and of swap, by the version of the hierarchy; v1 limits both together."""
_V1_SHARES = (2, 262_144)  # least and most of cpu.shares; 1024 is normal
_V2_WEIGHT = (1, 10_000)  # of cpu.weight; 100 is normal


@dataclass(frozen=True)
class Place:
    """Where groups with a controller can be made.

    Attributes:
        version: of the hierarchy, 1 or 2.
        parent: the directory in which a run makes its own.
    """

    version: int
    parent: Path


@dataclass(frozen=True)
class Places:
    """What can be limited here.

    Attributes:
        found: controller to place.
        missing: controller to why there is none, in words.
    """

    found: Mapping[str, Place]
    missing: Mapping[str, str]


def find_places(mounts: str | None = None, own: str | None = None) -> Places:
    """Looks where this process may make groups.

    Args:
        mounts: content of /proc/self/mountinfo, read if not given.
        own: content of /proc/self/cgroup, read if not given.
    """
    try:
        mounts = Path(MOUNTS_FILE).read_text(errors="surrogateescape") if mounts is None else mounts
        own = Path("/proc/self/cgroup").read_text(errors="surrogateescape") if own is None else own
    except OSError as error:
        return Places({}, dict.fromkeys((CPU, MEMORY), f"this kernel has no control groups ({error.strerror})"))
    groups = dict(memberships(own))
    found: dict[str, Place] = {}
    missing: dict[str, str] = {}
    for controller in (CPU, MEMORY):
        place = _find_v1(controller, mounts, groups) or _find_v2(controller, mounts, groups)
        if isinstance(place, Place):
            found[controller] = place
        else:
            missing[controller] = place or f"no control group has the controller {controller!r}"
    if {found[controller].version for controller in found} == {2} and len(set(found.values())) > 1:
        del found[CPU]  # a process is in one group of v2 only, and the limit of memory matters more
        missing[CPU] = f"{found[MEMORY].parent} does not hand on the controller 'cpu'"
    return Places(found, missing)


def _find_v1(controller: str, mounts: str, groups: Mapping[str, str]) -> Place | str:
    for names, path in groups.items():
        if controller in names.split(","):
            directory = _mounted("cgroup", mounts, path, controller)
            if directory is None:
                return f"the controller {controller!r} is not mounted"
            if not os.access(directory, os.W_OK | os.X_OK):
                return f"{directory} is not writable"
            return Place(1, directory)
    return ""


def _find_v2(controller: str, mounts: str, groups: Mapping[str, str]) -> Place | str:
    directory = _mounted("cgroup2", mounts, groups.get("", "/"))
    if directory is None:
        return ""
    reason = f"{directory} and the groups above it do not hand on the controller {controller!r}"
    while (directory / "cgroup.subtree_control").exists():
        if controller in (directory / "cgroup.subtree_control").read_text().split():
            if os.access(directory, os.W_OK | os.X_OK) and os.access(directory / "cgroup.procs", os.W_OK):
                return Place(2, directory)
            reason = f"{directory} is not writable"
        directory = directory.parent
    return reason


def _mounted(kind: str, mounts: str, path: str, option: str = "") -> Path | None:
    """Directory of a group in a hierarchy that is mounted; a part of it may be mounted, as in a container."""
    for mount in read_mounts(mounts):
        if mount.kind == kind and (not option or option in mount.options.split(",")):
            relative = os.path.relpath(path, mount.root)
            inside = "" if relative.startswith("..") else relative  # not below what is mounted: its top is ours
            return Path(mount.point) / inside
    return None


def available_memory(places: Places) -> int:
    """Returns the bytes of memory that this process and its descendants may use: the machine's, or what it is limited
    to. Raises OSError."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    least = int(fields["MemTotal"].split()[0]) << 10
    place = places.found.get(MEMORY)
    if place is not None:
        name, directory = _LIMITS[place.version][0], place.parent
        while (directory / name).exists():  # the root of v2 has none
            limit = (directory / name).read_text().strip()
            least = min(least, int(limit)) if limit != "max" else least
            directory = directory.parent
    return least


class RunGroups:
    """The control groups of one run.

    Args:
        run_id: the run.
        places: where groups can be made.
        record: file in which they are listed as long as they are there; None for no list.
    """

    def __init__(self, run_id: str, places: Places, record: Path | None = None) -> None:
        self._places = places.found
        self._record = record
        self._name = group_name(run_id)
        self._made: list[Path] = []  # the run's own first, then those of the hosts

    def add(self, host: str, *, memory: int, cpu_weight: float) -> tuple[Path, ...]:
        """Makes the groups of a host.

        Args:
            host: its name.
            memory: bytes that its processes may use together; 0 means no limit.
            cpu_weight: CPU time relative to the run's other hosts, 1 is an equal part; 0 means no weight.

        Returns:
            The directories that the first process of the host must enter.

        Raises:
            OSError: a group cannot be made, or not with these limits.
            KeyError: there is no place for a group with that controller.
        """
        entered: list[Path] = []
        for controller, wanted in ((MEMORY, memory), (CPU, cpu_weight)):
            if not wanted:
                continue
            place = self._places[controller]
            directory = self._directory(place, controller) / host
            self._make(directory)
            if controller == MEMORY:
                _limit_memory(directory, place.version, memory)
            else:
                _weigh(directory, place.version, cpu_weight)
            if directory not in entered:
                entered.append(directory)
        return tuple(entered)

    def open_events(self, host: str) -> int | None:
        """Opens the file in which the kernel counts the out-of-memory kills of a host (see `processes.oom`).

        Returns:
            A descriptor, None when the host has no memory group.

        Raises:
            OSError: it cannot be opened.
        """
        place = self._places.get(MEMORY)
        directory = place.parent / self._name / host if place else None
        if place is None or directory not in self._made:
            return None
        name = "memory.oom_control" if place.version == 1 else "memory.events"
        return os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)

    def remove(self) -> list[Path]:
        """Removes the groups, when their processes have ended. Returns those that are still there."""
        deadline = time.monotonic() + REMOVE_SECONDS
        for directory in reversed(self._made):
            while not _removed(directory) and time.monotonic() < deadline:
                time.sleep(_POLL)
        self._made = [directory for directory in self._made if directory.exists()]
        if self._record is not None and not self._made:
            self._record.unlink(missing_ok=True)
        return self._made

    def _directory(self, place: Place, controller: str) -> Path:
        """The run's own group in a hierarchy."""
        directory = place.parent / self._name
        if self._record is not None and directory not in self._made:
            with self._record.open("a") as file:
                file.write(f"{directory}\n")
        self._make(directory)
        if place.version == 2:
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")
        elif controller == CPU:
            # Among its neighbours the run counts as much as that many ordinary processes.
            _write_number(directory / "cpu.shares", 1024 * len(os.sched_getaffinity(0)), _V1_SHARES)
        return directory

    def _make(self, directory: Path) -> None:
        if directory not in self._made:
            directory.mkdir()
            self._made.append(directory)


def _limit_memory(directory: Path, version: int, memory: int) -> None:
    """Sets the limit, for memory and swap together: an instance has no swap."""
    limit, swap, of_swap = _LIMITS[version]
    (directory / limit).write_text(str(memory))
    if (directory / swap).exists():
        (directory / swap).write_text(str(memory) if of_swap is None else of_swap)


def _weigh(directory: Path, version: int, weight: float) -> None:
    if version == 1:
        _write_number(directory / "cpu.shares", round(1024 * weight), _V1_SHARES)
    else:
        _write_number(directory / "cpu.weight", round(100 * weight), _V2_WEIGHT)


def _write_number(path: Path, number: int, bounds: tuple[int, int]) -> None:
    path.write_text(str(min(max(number, bounds[0]), bounds[1])))


def group_name(run_id: str) -> str:
    """Returns the name of the groups of a run whose supervisor is this process."""
    me = look(os.getpid())
    assert me is not None
    return f"headrace-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}-{_pid_space()}-{me.pid}-{me.start}"


def _pid_space() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def sweep(places: Places, records: Iterable[Path] = (), seconds: float = 0.0) -> None:
    """Removes the groups of runs whose supervisor is dead, as far as no process is left in them.

    Args:
        places: where they may be.
        records: lists of groups that runs have left (see `RECORD`).
        seconds: how long to wait for processes that are just ending.
    """
    deadline = time.monotonic() + seconds
    for parent in {place.parent for place in places.found.values()}:
        for directory in parent.glob("headrace-*"):
            _sweep_run(directory, deadline)
    for record in records:
        with contextlib.suppress(FileNotFoundError):  # another sweep was first
            gone = [_sweep_run(Path(line), deadline) for line in filter(None, record.read_text().split("\n"))]
            if all(gone):
                record.unlink()


def _sweep_run(directory: Path, deadline: float) -> bool:
    """Removes a run's group with those of its hosts, if its supervisor is dead. Returns whether it is gone."""
    match = _NAME.fullmatch(directory.name)
    if match is None or int(match[1]) != _pid_space() or is_running(int(match[2]), int(match[3])):
        return False
    with contextlib.suppress(FileNotFoundError):
        for group in [*filter(Path.is_dir, directory.iterdir()), directory]:
            while not _removed(group) and time.monotonic() < deadline:
                time.sleep(_POLL)
    return not directory.exists()


def _removed(directory: Path) -> bool:
    """Removes a group. Returns whether it is gone."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # a process is in it
        return False
    return True

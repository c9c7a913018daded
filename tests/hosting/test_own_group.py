"""A container's own control group: found where /sys shows it, whatever path the kernel names, and none on a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.control_group import memory_limit, open_kills
from headrace.processes.oom import OomCounter

V1 = {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"}
V2 = {"memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 0\n"}


class Container:
    """What a process sees of cgroups: the lines of its membership, and the files that are there."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.mount = folder / "cgroup"
        self.membership = folder / "membership"
        self.membership.write_text("".join(f"{line}\n" for line in lines))

    def write(self, where: str, files: dict[str, str]) -> None:
        (self.mount / where).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.mount / where / name).write_text(text)

    def kills(self) -> int | None:
        descriptor = open_kills(self.mount, self.membership)
        if descriptor is None:
            return None
        counter = OomCounter(descriptor)
        try:
            return counter.read()
        finally:
            counter.close()

    def limit(self) -> int:
        return memory_limit(self.mount, self.membership)


@pytest.mark.parametrize("where", ["memory", "memory/kubepods/pod1/abc"])
@pytest.mark.parametrize(("text", "limit"), [("268435456", 268435456), ("9223372036854771712", 0)])
def test_version_1_has_a_folder_for_memory(tmp_path: Path, where: str, text: str, limit: int) -> None:
    container = Container(tmp_path, "5:cpu,cpuacct:/other", "4:memory:/kubepods/pod1/abc", "0::/")
    container.write(where, {**V1, "memory.limit_in_bytes": f"{text}\n"})
    assert (container.kills(), container.limit()) == (3, limit)


@pytest.mark.parametrize(("where", "path"), [(".", "/"), (".", "/of/the/machine"), ("user/one", "/user/one")])
@pytest.mark.parametrize(("text", "limit"), [("268435456", 268435456), ("max", 0)])
def test_version_2_has_one_folder(tmp_path: Path, where: str, path: str, text: str, limit: int) -> None:
    container = Container(tmp_path, f"0::{path}")
    container.write(where, {**V2, "memory.max": f"{text}\n"})
    assert (container.kills(), container.limit()) == (3, limit)


def test_the_machines_own_first_group_is_none(tmp_path: Path) -> None:
    """Its count is of all that runs on the machine."""
    machine = Container(tmp_path, "4:memory:/", "0::/")
    machine.write("memory", {**V1, "memory.limit_in_bytes": "1000\n"})
    assert (machine.kills(), machine.limit()) == (None, 0)


def test_without_sys_or_proc_there_is_none(tmp_path: Path) -> None:
    hidden = Container(tmp_path, "4:memory:/kubepods/pod1/abc")
    assert (hidden.kills(), hidden.limit()) == (None, 0)
    hidden.membership.unlink()
    assert (hidden.kills(), hidden.limit()) == (None, 0)


@pytest.mark.parametrize(
    ("line", "above", "task", "count", "name", "none"),
    [
        ("4:memory:/slurm/uid_1/job_7/step_0/task_0", "memory/slurm/uid_1/job_7", "step_0/task_0", V1,
         "memory.limit_in_bytes", "9223372036854771712"),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "system.slice/slurmstepd.scope/job_7",
         "step_0/user/task_0", V2, "memory.max", "max"),
    ],
)  # fmt: skip
def test_the_limit_of_a_slurm_job_holds_for_its_task_which_counts_the_kills(
    tmp_path: Path, line: str, above: str, task: str, count: dict[str, str], name: str, none: str
) -> None:
    node = Container(tmp_path, line)
    node.write(above, {name: "268435456\n"})
    folder = Path(above)
    for part in Path(task).parts:
        folder /= part
        node.write(str(folder), {name: f"{none}\n"})
    node.write(str(folder), count)
    assert (node.kills(), node.limit()) == (3, 268435456)

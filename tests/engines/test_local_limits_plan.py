"""How a machine is divided among instances, and where control groups can be made: without any process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog.instance_types import InstanceShape
from headrace.engines.local import host_limits
from headrace.engines.local.cgroups import (
    CPU,
    MEMORY,
    Place,
    Places,
    RunGroups,
    available_memory,
    find_places,
    sweep,
)
from headrace.engines.local.host_limits import (
    GIB,
    LEAST_MEMORY,
    SYSTEM_PART,
    Machine,
    assign_limits,
    describe_host,
    explain_limits,
    parts,
    share_cpus,
    share_memory,
)
from headrace.errors import JobInvalid
from headrace.job import Job
from headrace.processes.oom import OomCounter

shapes = st.lists(
    st.builds(InstanceShape, st.integers(1, 192), st.floats(1, 2048), st.integers(0, 8)), min_size=1, max_size=70
)


def job(*groups: tuple[str, str, int], **local: object) -> Job:
    asked = [{"instance_group_name": name, "instance_type": kind, "instance_count": n} for name, kind, n in groups]
    return Job("job", source_dir="code", entry_point="train.py", instance_groups=asked, engines={"local": local})


def machine(cpus: int, gib: float = 0.0, gpus: int = 0) -> Machine:
    return Machine(tuple(range(cpus)), int(gib * GIB), tuple(range(gpus)), weights=True)


# --- CPUs ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1, 10_000), min_size=1, max_size=100))
def test_parts_add_up_and_nobody_gets_less_than_half_of_an_equal_part(sizes: list[float]) -> None:
    found = parts(sizes)
    assert sum(found) == pytest.approx(1.0)
    assert min(found) >= 0.5 / len(sizes) - 1e-12
    in_order = sorted(zip(sizes, found, strict=True))
    assert [part for _, part in in_order] == sorted(found)


def test_parts_are_in_proportion_where_nobody_is_too_small() -> None:
    assert parts([36, 16, 16]) == pytest.approx((36 / 68, 16 / 68, 16 / 68))
    assert parts([96, 4]) == pytest.approx((0.75, 0.25))


def test_on_a_laptop_every_instance_may_use_all_cpus_and_has_its_part_when_they_are_busy() -> None:
    found = assign_limits(job(("data", "ml.c5.xlarge", 1), ("dnn", "ml.p4d.24xlarge", 1)), machine(2))
    assert [(each.cpus, each.cpu_weight) for each in found.values()] == [((), 0.25), ((), 0.75)]


def test_on_a_big_machine_every_instance_has_the_cpus_of_its_type_alone() -> None:
    found = assign_limits(job(("data", "ml.c5.xlarge", 2), ("dnn", "ml.c5.2xlarge", 1)), machine(64))
    assert [each.cpus for each in found.values()] == [(0, 1, 2, 3), (4, 5, 6, 7), tuple(range(8, 16))]
    assert {each.cpu_weight for each in found.values()} == {0.0}


def test_instances_that_overlap_are_spread_over_the_machine() -> None:
    sets, weights = share_cpus([InstanceShape(4, 8, 0)] * 3, tuple(range(8)))
    assert sets == [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)]
    assert weights == pytest.approx([1 / 3] * 3)


@given(shapes, st.integers(1, 256))
def test_an_instance_has_as_many_cpus_as_its_type_or_all(types: list[InstanceShape], cpus: int) -> None:
    sets, weights = share_cpus(types, tuple(range(cpus)))
    for shape, ids in zip(types, sets, strict=True):
        assert len(ids) == (0 if shape.vcpus >= cpus else shape.vcpus)
    alone = sum(min(shape.vcpus, 10_000) for shape in types) <= cpus
    assert (sum(weights) == 0.0) == alone
    if alone and all(sets):
        assert len({cpu for ids in sets for cpu in ids}) == sum(map(len, sets))


@pytest.mark.parametrize("option", [{"cpu_sets": {"a": "0", "b": "1"}}, {"cpu_shares": {"a": 1, "b": 1}}])
def test_sets_and_shares_of_the_user_come_first(option: dict[str, object]) -> None:
    found = assign_limits(job(("a", "ml.c5.xlarge", 1), ("b", "ml.c5.9xlarge", 1), **option), machine(2, 16))
    assert [(each.cpus, each.cpu_weight) for each in found.values()] == [((0,), 0.0), ((1,), 0.0)]
    assert all(each.memory for each in found.values())


def test_without_cpu_groups_there_are_no_weights() -> None:
    found = assign_limits(job(("a", "ml.c5.xlarge", 3)), Machine((0, 1)))
    assert {each.cpu_weight for each in found.values()} == {0.0}


# --- memory --------------------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_type_when_all_fit() -> None:
    found = assign_limits(job(("a", "ml.c5.xlarge", 2)), machine(64, 64))
    assert [each.memory for each in found.values()] == [8 * GIB, 8 * GIB]


def test_memory_is_scaled_down_when_it_does_not_fit_and_what_one_does_not_need_the_others_get() -> None:
    small, big = share_memory([InstanceShape(4, 8, 0), InstanceShape(96, 1152, 8)], 100 * GIB)
    assert small == 8 * GIB  # a quarter would be 22.5 GiB, more than its type has
    assert big == pytest.approx(82 * GIB, rel=0.001)


@given(shapes, st.integers(1, 4096))
def test_memory_of_all_fits_into_the_machine_unless_they_are_too_many(types: list[InstanceShape], gib: int) -> None:
    found = share_memory(types, gib * GIB)
    for shape, size in zip(types, found, strict=True):
        assert min(LEAST_MEMORY, int(shape.memory_gib * GIB)) <= size <= int(shape.memory_gib * GIB)
    enough = sum(size for size in found if size > LEAST_MEMORY)
    assert enough <= gib * GIB * (1 - SYSTEM_PART) + 1


def test_an_unknown_shape_or_a_machine_without_groups_means_no_limit() -> None:
    assert share_memory([None, InstanceShape(4, 8, 0)], 64 * GIB) == [0, 8 * GIB]
    assert share_memory([InstanceShape(4, 8, 0)], 0) == [0]


def test_limits_none_leaves_everything_as_it_is() -> None:
    [host] = assign_limits(job(("a", "ml.p4d.24xlarge", 1), limits="none"), machine(64, 64, 4)).values()
    assert (host.cpus, host.cpu_weight, host.memory, host.gpus) == ((), 0.0, 0, None)


# --- GPUs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "gpus", "expected"),
    [
        ([("data", "ml.c5.xlarge", 1), ("dnn", "ml.p3.2xlarge", 2)], 2, [(), (0,), (1,)]),
        ([("dnn", "ml.p3.2xlarge", 1)], 4, [(0,)]),
        ([("a", "ml.p3.8xlarge", 1), ("b", "ml.p3.2xlarge", 1)], 4, [(0, 1, 2), (3,)]),
        ([("a", "ml.p3.2xlarge", 3)], 2, [(0,), (1,), (0,)]),
        ([("a", "ml.p3.2xlarge", 1), ("b", "ml.p3.2xlarge", 1)], 1, [(0,), (0,)]),
        ([("a", "ml.p4d.24xlarge", 1), ("b", "ml.c5.xlarge", 1)], 0, [(), ()]),
    ],
)
def test_gpus_go_to_the_groups_whose_type_has_some(groups, gpus: int, expected) -> None:
    assert [each.gpus for each in assign_limits(job(*groups), machine(8, 0, gpus)).values()] == expected


def test_gpus_that_the_user_names_are_divided_among_the_hosts_of_the_group() -> None:
    asked = job(("a", "ml.c5.xlarge", 2), ("b", "ml.p3.2xlarge", 1), gpus={"a": "1-3"})
    assert [each.gpus for each in assign_limits(asked, machine(8, 0, 4)).values()] == [(1, 2), (3,), ()]


def test_a_gpu_that_does_not_exist_is_the_users_mistake() -> None:
    with pytest.raises(JobInvalid, match=r"GPU 7 does not exist; this machine has 0-1") as caught:
        assign_limits(job(("a", "ml.p3.2xlarge", 1), gpus={"a": "0,7"}), machine(8, 0, 2))
    assert "engines.local.gpus.a" in str(caught.value)


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, (0, 1)), ("1", (1,)), ("GPU-b,0", (1, 0)), ("", ()), ("-1,0", ()), ("0,9,1", (0,))]
)
def test_the_machines_gpus_are_those_of_nvidia_smi_that_are_visible(tmp_path, monkeypatch, visible, expected) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-a'\necho '1, GPU-b'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host_limits.gpu_ids() == expected


def test_without_nvidia_smi_there_are_no_gpus(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_limits.gpu_ids() == ()


# --- control groups ------------------------------------------------------------------------------------------------


def hierarchy(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_cgroup_v1_is_found_by_controller_below_the_own_group(tmp_path) -> None:
    own = hierarchy(tmp_path / "my mem" / "batch" / "7")
    (tmp_path / "cpu").mkdir()
    point = str(tmp_path / "my mem").replace(" ", "\\040")
    mounts = (
        f"31 23 0:27 / {point} rw,relatime - cgroup cgroup rw,memory\n"
        f"32 23 0:28 / {tmp_path}/cpu rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct"
    )
    places = find_places(mounts, "3:memory:/batch/7\n2:cpu,cpuacct:/\n0::/\n")
    assert places == Places({CPU: Place(1, tmp_path / "cpu"), MEMORY: Place(1, own)}, {})


def test_in_a_container_the_mounted_part_is_the_top(tmp_path) -> None:
    mounts = f"31 23 0:27 /docker/ab {tmp_path} rw - cgroup cgroup rw,memory"
    assert find_places(mounts, "3:memory:/docker/ab/x\n").missing[MEMORY].startswith(f"{tmp_path}/x is not")
    (tmp_path / "x").mkdir()
    assert find_places(mounts, "3:memory:/docker/ab/x\n").found[MEMORY] == Place(1, tmp_path / "x")
    assert find_places(mounts, "3:memory:/elsewhere\n").found[MEMORY] == Place(1, tmp_path)


def v2(tmp_path: Path, own: str, **handed_on: str) -> Places:
    hierarchy(tmp_path, cgroup__subtree_control=handed_on.get("root", ""), cgroup__procs="")
    folder = tmp_path
    for name in own.split("/"):
        folder = hierarchy(folder / name, cgroup__subtree_control=handed_on.get(name, ""), cgroup__procs="")
    return find_places(f"31 23 0:27 / {tmp_path} rw - cgroup2 cgroup2 rw,nsdelegate", f"0::/{own}\n")


def test_cgroup_v2_takes_the_nearest_ancestor_that_hands_on_the_controllers(tmp_path) -> None:
    places = v2(tmp_path, "user/session/app", root="cpu memory", user="memory cpu pids")
    assert places.found == {CPU: Place(2, tmp_path / "user"), MEMORY: Place(2, tmp_path / "user")}


def test_cgroup_v2_puts_a_process_into_one_group_only(tmp_path) -> None:
    places = v2(tmp_path, "user/app", root="cpu memory", user="memory")
    assert places.found == {MEMORY: Place(2, tmp_path / "user")}
    assert "does not hand on the controller 'cpu'" in places.missing[CPU]


def test_cgroup_v2_without_delegation_says_why_there_is_no_limit(tmp_path) -> None:
    places = v2(tmp_path, "user/app", root="pids")
    assert not places.found
    assert "do not hand on the controller 'memory'" in places.missing[MEMORY]


def test_no_control_groups_at_all() -> None:
    assert set(find_places("", "").missing) == {CPU, MEMORY}


def test_an_empty_list_of_groups_is_removed_by_the_sweep(tmp_path: Path) -> None:
    record = tmp_path / "groups"
    record.write_text("")
    sweep(Places({}, {}), [record])
    assert not record.exists()


def test_the_memory_of_the_machine_is_what_the_groups_above_leave(tmp_path) -> None:
    hierarchy(tmp_path / "a", **{"memory__max": str(2 * GIB)})
    hierarchy(tmp_path / "a" / "b", **{"memory__max": "max"})
    assert available_memory(Places({MEMORY: Place(2, tmp_path / "a" / "b")}, {})) == 2 * GIB


def test_groups_of_v2_hand_on_their_controllers_and_hold_weight_limit_and_no_swap(tmp_path, monkeypatch) -> None:
    place = Place(2, tmp_path)
    written: dict[str, str] = {}
    write = Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda path, text: written.update({str(path): text}) or write(path, text))
    groups = RunGroups("run-1", Places({CPU: place, MEMORY: place}, {}))
    [group] = groups.add("algo-1", memory=3 * GIB, cpu_weight=1.5)
    assert group.parent.parent == tmp_path
    assert written[f"{group}/memory.max"] == str(3 * GIB)
    assert written[f"{group}/cpu.weight"] == "150"
    assert written[f"{group.parent}/cgroup.subtree_control"] == "+cpu"


@pytest.mark.parametrize("text", ["oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "low 0\noom 9\noom_kill 3\n"])
def test_the_kernels_count_is_read_in_both_versions(tmp_path, text: str) -> None:
    (tmp_path / "events").write_text(text)
    counter = OomCounter(os.open(tmp_path / "events", os.O_RDONLY))
    assert counter.read() == 3
    counter.close()


# --- words ---------------------------------------------------------------------------------------------------------


def words(asked: Job, there: Machine, **missing: str) -> str:
    found = {name: Place(1, Path("/x")) for name in (CPU, MEMORY) if name not in missing}
    return "\n".join(explain_limits(asked, there, Places(found, missing)))


def test_the_plan_says_how_the_machine_was_divided() -> None:
    said = words(job(("a", "ml.c5.xlarge", 1), ("b", "ml.p4d.24xlarge", 1)), machine(2, 16))
    assert "this machine: 2 CPUs, 16 GiB of memory; the instance types have 100 vCPUs and 1160 GiB together" in said
    assert "CPU time: by weight" in said
    assert "memory: scaled down" in said
    assert "GPUs: the types have 8, this machine has none" in said


def test_the_plan_says_what_cannot_be_limited_and_why() -> None:
    said = words(job(("a", "ml.c5.xlarge", 3)), machine(2), memory="/sys/x is not writable", cpu="no cpu")
    assert "memory: no limit can be set here: /sys/x is not writable" in said
    assert "not weighted" in said
    assert "no cpu" in said
    assert words(job(("a", "ml.c5.xlarge", 3), limits="none"), machine(2)) == "limits: none (engines.local.limits)"


def test_a_host_is_described_by_what_it_has() -> None:
    assert describe_host(0.25, 3 << 29, (0, 1)) == "25 % of busy CPUs, memory 1.5 GiB, GPUs 0,1"
    assert describe_host(0.0, 0, None) == ""

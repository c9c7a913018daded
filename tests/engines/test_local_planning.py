"""From a job to its launch plan."""

import errno
import os
from pathlib import Path

import pytest

from headrace.engines.local.host_limits import Machine
from headrace.engines.local.plan_hosts import feed_executors, make_plan
from headrace.engines.new_run import new_run
from headrace.engines.planning.prepare_run import bring_job_code, code_notes, digest_of_code, moved_paths
from headrace.errors import EngineRefused, JobInvalid, UsageError
from headrace.hosting.inputs.source_code import code_digest, snapshot
from headrace.instance.launch_plan import NAMESPACE, Isolation, Readiness, Retry
from headrace.job import Job
from headrace.runs import RunPaths
from headrace.runs.describe import job_arn

PATHS = RunPaths(Path("/runs/job-1"))


def job(**fields):
    return Job("job", source_dir="code", entry_point="train.py", **fields)


def group(name, count, kind="ml.c5.xlarge"):
    return {"instance_group_name": name, "instance_type": kind, "instance_count": count}


def plan(machine=(0, 1, 2, 3), **fields):
    return make_plan(job(**fields), PATHS, Machine(tuple(machine)), "/usr/bin/python3")


def test_hosts_are_numbered_through_the_groups_with_an_address_each():
    made = plan(instance_groups=[group("data", 2), group("dnn", 1)])
    assert [(host.name, host.group, host.address) for host in made.hosts] == [
        ("algo-1", "data", "127.0.1.1"),
        ("algo-2", "data", "127.0.1.2"),
        ("algo-3", "dnn", "127.0.1.3"),
    ]
    assert made.hosts[2].base_dir == "/runs/job-1/hosts/algo-3"
    assert made.hosts[2].record_dir == "/runs/job-1"
    assert made.run_id == "job-1"


def test_a_job_without_groups_is_one_group():
    made = plan(instance_type="ml.c5.xlarge", instance_count=2)
    assert [each.name for each in made.groups] == ["homogeneousCluster"]
    assert made.leader == "algo-1"
    assert made.completion_groups == ("homogeneousCluster",)


def test_the_leader_is_the_first_host_of_the_first_completion_group():
    made = plan(instance_groups=[group("data", 2), group("dnn", 2)], completion={"instance_groups": ["dnn"]})
    assert made.leader == "algo-3"


def test_ranks_go_to_the_distributions_groups_only():
    made = plan(
        instance_groups=[group("side", 1), group("dnn", 2)],
        distribution={"torch_distributed": {"enabled": True, "processes_per_host": 3}, "instance_groups": ["dnn"]},
    )
    assert [each.processes_per_host for each in made.groups] == [0, 3]
    assert made.hosts_of(made.distributions[0]) == ("algo-2", "algo-3")
    assert made.completion_groups == ("dnn",)


def test_a_group_that_only_feeds_runs_no_entry_point():
    made = plan(
        instance_groups=[group("data", 1), group("dnn", 1)],
        data_service={"feed": {"enabled": True}, "instance_groups": ["data"]},
        engines={"local": {"cpu_sets": {"data": "1-3", "dnn": "0"}}},
    )
    data, dnn = made.groups
    assert (data.entry_point, data.feed_executors) == (False, 3)
    assert (dnn.entry_point, dnn.feed_executors) == (True, 0)
    assert [host.cpus for host in made.hosts] == [(1, 2, 3), (0,)]
    assert made.leader == "algo-2"


def test_a_data_group_without_cpu_sets_may_use_the_whole_machine():
    made = plan(
        instance_groups=[group("data", 1), group("dnn", 1)],
        data_service={"feed": {"enabled": True}, "instance_groups": ["data"]},
    )
    assert made.groups[0].feed_executors == 4
    assert made.hosts[0].cpus == ()


@pytest.mark.parametrize(
    ("wanted", "cores", "ranks", "executors"),
    [("auto", 4, 0, 4), ("auto", 4, 1, 3), ("auto", 2, 2, 1), ("auto", 1, 4, 1), (6, 2, 2, 6)],
)
def test_data_workers_get_the_cores_that_ranks_leave(wanted, cores, ranks, executors):
    assert feed_executors(wanted, cores, ranks) == executors


def test_the_snapshot_leaves_out_what_is_not_code(tmp_path):
    source = tmp_path / "source"
    for name in (".git/config", "__pycache__/x.pyc", ".venv311/bin/python", ".headrace/runs/a/b", "pkg/mod.py"):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_text(name)
    (source / "pkg" / "__pycache__").mkdir()
    (source / "train.py").write_text("train")
    snapshot(source, tmp_path / "copy", leave_out=tmp_path / "runs")
    found = sorted(str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*"))
    assert found == ["pkg", "pkg/mod.py", "train.py"]


def test_links_that_lead_out_of_the_code_become_what_they_lead_to_and_others_stay_inside_of_the_copy(tmp_path):
    source, library, elsewhere = tmp_path / "source", tmp_path / "library", tmp_path / "elsewhere"
    for folder in (source / "pkg", library / "deep", elsewhere):
        folder.mkdir(parents=True)
    (library / "deep" / "mod.py").write_text("mod")
    (library / "own").symlink_to("deep/mod.py")  # leads out of the job's code, and stays in the library's copy
    (library / "more").symlink_to(elsewhere)
    (elsewhere / "far.py").write_text("far")
    (source / "a.py").write_text("a")
    (source / "pkg" / "inside").symlink_to("../a.py")
    (source / "pkg" / "absolute").symlink_to(source / "a.py")
    (source / "relative").symlink_to("../library")
    (source / "whole").symlink_to(library)
    (source / "file.py").symlink_to(library / "deep" / "mod.py")
    (source / "lock").symlink_to("user@host.123")  # an editor's: nothing is there
    (source / "circle").symlink_to("circle")
    before = sorted(map(str, library.rglob("*")))
    copy = tmp_path / "copy"
    snapshot(source, copy, leave_out=tmp_path / "runs")
    links = {str(path.relative_to(copy)): str(path.readlink()) for path in copy.rglob("*") if path.is_symlink()}
    assert links == {
        "pkg/inside": "../a.py", "pkg/absolute": "../a.py", "lock": "user@host.123", "circle": "circle",
        "relative/own": "deep/mod.py", "whole/own": "deep/mod.py",
    }  # fmt: skip
    for name in ("relative/deep/mod.py", "relative/own", "whole/own", "file.py"):
        assert (copy / name).read_text() == "mod"
    assert (copy / "whole" / "more" / "far.py").read_text() == "far"
    (copy / "relative" / "deep" / "mod.py").write_text("written by a program")
    assert sorted(map(str, library.rglob("*"))) == before
    assert (library / "deep" / "mod.py").read_text() == "mod"


@pytest.mark.parametrize("leads_to", ["../..", "/", "../../../away"])
def test_a_link_to_a_folder_above_the_code_is_refused(tmp_path, leads_to):
    source, away = tmp_path / "project" / "code", tmp_path / "away"
    (source / "pkg").mkdir(parents=True)
    away.mkdir()
    (away / "back").symlink_to(tmp_path / "project")
    (source / "pkg" / "link").symlink_to(leads_to)
    with pytest.raises(UsageError, match="a folder above it"):
        snapshot(source, tmp_path / "copy", leave_out=tmp_path / "runs")


def test_the_digest_of_code_changes_with_every_byte_name_and_mode_that_a_run_would_get_and_with_nothing_else(tmp_path):
    source, library, runs = tmp_path / "source", tmp_path / "library", tmp_path / "runs"
    for folder in (source / "__pycache__", library):
        folder.mkdir(parents=True)
    script, shared = source / "train.py", library / "mod.py"
    script.write_text("a")
    shared.write_text("b")
    (source / "lib").symlink_to(library)
    digest = lambda: code_digest("source", tmp_path, ["library"], runs, archive=False)  # noqa: E731
    seen = [digest()]
    (source / "__pycache__" / "x.pyc").write_text("left out")
    os.utime(script, (1, 1))
    assert digest() == seen[0]
    for change in (
        lambda: script.write_text("c"),
        lambda: shared.write_text("d"),
        lambda: script.chmod(0o755),
        lambda: script.rename(source / "other.py"),
        lambda: (source / "link").symlink_to("other.py"),
        lambda: (source / "empty").mkdir(),
    ):
        change()
        seen.append(digest())
    assert len(set(seen)) == len(seen)


def test_the_snapshot_of_a_directory_that_holds_the_runs_ends(tmp_path):
    (tmp_path / "train.py").write_text("train")
    copy = tmp_path / "home" / "runs" / "r" / "code"
    copy.parent.mkdir(parents=True)
    snapshot(tmp_path, copy, leave_out=tmp_path / "home" / "runs")
    assert sorted(path.name for path in copy.rglob("*")) == ["home", "train.py"]


def test_order_stall_retry_and_encryption_are_in_the_plan():
    data = {**group("data", 1), "ready": {"port": 6000, "timeout": 20}}
    planned = plan(
        instance_groups=[{**group("dnn", 1), "depends_on": ["data"]}, data],
        completion={"instance_groups": ["dnn"], "stall_after": 90},
        retry={"attempts": 3, "on": "any"},
        encrypt_inter_container_traffic=True,
    )
    assert planned.group("dnn").depends_on == ("data",)
    assert planned.group("dnn").ready == Readiness()
    assert planned.group("data").ready == Readiness(6000, 20.0)
    assert (planned.stall_after, planned.retry, planned.encrypt) == (90.0, Retry(3, any=True), True)


def test_a_hyperparameter_that_is_a_path_of_the_instance_leads_to_the_hosts_own_tree() -> None:
    given = {"model_dir": "/opt/ml/model", "base": "/opt/ml", "other": "/opt/mlx/a", "n": 3, "in": "see /opt/ml/model"}
    assert moved_paths(given, "/runs/r/hosts/algo-2") == {
        "model_dir": "/runs/r/hosts/algo-2/model",
        "base": "/runs/r/hosts/algo-2",
    }
    assert moved_paths(given, "/opt/ml") == {}


@pytest.mark.parametrize("level", ["none", NAMESPACE])
@pytest.mark.parametrize(("port", "workers"), [(65535, 1), (65500, 64)])
def test_ports_of_tf_data_service_beyond_the_last_one_are_refused(level, port, workers):
    asked = job(
        instance_groups=[group("data", 1)],
        data_service={"tf_data": {"enabled": True, "workers_per_host": workers}, "instance_groups": ["data"]},
        engines={"local": {"ports": {"tf_data": port}}},
    )
    with pytest.raises(JobInvalid) as refused:
        make_plan(asked, PATHS, Machine((0,)), "/usr/bin/python3", Isolation(level))
    (problem,) = refused.value.problems
    assert (problem.field, problem.value) == ("engines.local.ports.tf_data", str(port))
    assert f"would have port {port + workers}; the last TCP port is 65535" in problem.message
    assert problem.hint.startswith(f"begin at {65535 - workers} or lower")


def test_the_last_port_may_be_used():
    made = plan(
        instance_groups=[group("data", 1)],
        data_service={"tf_data": {"enabled": True}, "instance_groups": ["data"]},
        engines={"local": {"ports": {"tf_data": 65534}}},
    )
    assert made.ports.tf_data == 65534


def test_a_second_world_beyond_the_last_port_is_refused():
    torch = {"torch_distributed": {"enabled": True}}
    with pytest.raises(JobInvalid, match="the last of the distributions would have port 65536"):
        plan(
            instance_groups=[group("a", 1), group("b", 1)],
            distribution=[{**torch, "instance_groups": ["a"]}, {**torch, "instance_groups": ["b"]}],
            engines={"local": {"ports": {"master": 65535}}},
        )


def test_the_arn_of_the_programs_is_that_of_the_description():
    assert plan(instance_groups=[group("a", 1)]).job_arn == job_arn("job")


IGNORED = """
# a comment
data/
!data/kept
/out
*.ckpt
sub/*.tmp
"""


@pytest.mark.promise("job-file", "what an ignore file names is not copied; much code is reported before it is copied")
@pytest.mark.parametrize("names", [(".gitignore",), (".headraceignore", ".gitignore")])
def test_what_an_ignore_file_names_is_neither_copied_nor_counted_nor_digested(tmp_path: Path, names, capsys) -> None:
    source = tmp_path / "source"
    for name in ("train.py", "data/big", "data/kept", "out", "in/out", "a.ckpt", "sub/b.ckpt", "sub/c.tmp", "c.tmp"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"x" * 1000)
    (source / "data" / "big").write_bytes(b"")
    os.truncate(source / "data" / "big", 60_000_000)
    (tmp_path / "library").mkdir()
    (source / "linked").symlink_to(tmp_path / "library")
    (tmp_path / "library" / "w.ckpt").write_bytes(b"")
    (tmp_path / "library" / "w.py").write_bytes(b"")
    first, *rest = names
    (source / first).write_text(IGNORED)
    for name in rest:
        (source / name).write_text("train.py\n")  # does not count beside the other one
    job = one_host_job(tmp_path, "source")
    paths = RunPaths(tmp_path / "runs" / "one")
    paths.root.mkdir(parents=True)
    bring_job_code(job, paths)
    assert ("leaves out" in capsys.readouterr().err) == (first == ".gitignore")
    copied = {str(path.relative_to(paths.code)) for path in paths.code.rglob("*") if path.is_file()}
    assert copied == {*names, "train.py", "in/out", "c.tmp", "linked/w.py"}
    digest = digest_of_code(job)
    (source / "sub" / "b.ckpt").write_bytes(b"another")
    assert digest_of_code(job) == digest
    notes = [*code_notes(job, paths.root.parent)]
    assert not any("warning" in note for note in notes)
    assert len(notes) == (first == ".gitignore")  # what was not written for headrace is told
    (source / ".headraceignore").write_text("")
    warning, *_ = code_notes(job, paths.root.parent)
    assert "60 MB, of these data 60 MB" in warning


def test_what_is_neither_file_nor_folder_is_no_code_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, outside = tmp_path / "source", tmp_path / "outside"
    source.mkdir()
    (source / "train.py").write_text("")
    os.mkfifo(source / "pipe")
    os.mkfifo(outside)
    (source / "link").symlink_to(outside)
    (source / "dangling").symlink_to("nothing")
    name = os.fsdecode(b"na\xefve.py")
    (source / name).write_text("")
    job = one_host_job(tmp_path, "source")
    paths = RunPaths(tmp_path / "runs" / "one")
    paths.root.mkdir(parents=True)
    digest_of_code(job)
    bring_job_code(job, paths)
    assert f"code: {source}: left out, neither files nor folders: link, pipe" in capsys.readouterr().err
    assert sorted(path.name for path in paths.code.iterdir()) == ["dangling", name, "train.py"]


def test_a_disk_that_is_full_is_named_by_the_copy_that_it_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "code/train.py", None, "/runs/code/train.py")
    with (
        pytest.raises(EngineRefused, match=r"No space left on device \(/runs/code/train\.py\)"),
        new_run(one_host_job(tmp_path, "source"), "local"),
    ):
        raise full


def test_an_entry_point_that_an_ignore_file_leaves_out_is_refused_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("")
    (tmp_path / "source" / ".gitignore").write_text("*.py\n")
    paths = RunPaths(tmp_path / "runs" / "one")
    paths.root.mkdir(parents=True)
    with pytest.raises(UsageError, match=r"train\.py: .*\.gitignore leaves it out"):
        bring_job_code(one_host_job(tmp_path, "source"), paths)


def one_host_job(base: Path, source_dir: str) -> Job:
    return Job(
        "one",
        source_dir=str(base / source_dir),
        entry_point="train.py",
        instance_groups=[group("one", 1, "ml.m5.xlarge")],
    )

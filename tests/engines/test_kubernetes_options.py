"""Options of the Kubernetes engine, and what it refuses of a job: each is told with its place and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kube_jobs import CASES, DATA, DNN, FEED, kube_job, planned

from headrace import engines
from headrace.cli.main import invoke
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob, check_kubernetes_job, plan_kubernetes_job
from headrace.errors import EngineRefused, JobInvalid
from headrace.job import Job, load_job
from headrace.job.model.kubernetes_options import amount_of
from headrace.runs import RunPaths, runs_dir

PODS = "engines.kubernetes"


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"namespace": "Training"}, "namespace", "small letters"),
        ({"namespace": "n" * 64}, "namespace", "1 to 63"),
        ({"image": "a b"}, "image", "without blanks"),
        ({"image": 3}, "image", "must be a string"),
        ({"node_selector": {"a/b/c": "x"}}, "node_selector.a/b/c", "must be a key"),
        ({"node_selector": {"zone": "a b"}}, "node_selector.zone", "letters, digits"),
        ({"node_selector": {"gpu": True}}, "node_selector.gpu", 'must be a string write it in quotes: "true"'),
        ({"labels": {"headrace/run": "x"}}, "labels.headrace/run", "headrace's own"),
        ({"resources": {"limits": {"memory": "16 Gi"}}}, "resources.limits.memory", "must be a quantity"),
        ({"resources": {"limits": {"cpu": -1}}}, "resources.limits.cpu", "must be a quantity"),
        ({"resources": {"limit": {}}}, "resources.limit", "did you mean 'limits'"),
        ({"shm": "lots"}, "shm", "must be a quantity"),
        ({"gpus": "1"}, "gpus", "whole number"),
        ({"tolerations": [{"effect": "NoSchedul"}]}, "tolerations[0].effect", "did you mean 'NoSchedule'"),
        ({"tolerations": {"key": "x"}}, "tolerations", "must be a list"),
        ({"image_pull_policy": "always"}, "image_pull_policy", "did you mean 'Always'"),
        ({"volumes": {"Data": {"mount_path": "/data", "claim": "c"}}}, "volumes.Data", "small letters"),
        ({"volumes": {"data": {"claim": "c"}}}, "volumes.data.mount_path", "is required"),
        ({"volumes": {"data": {"mount_path": "data", "claim": "c"}}}, "volumes.data.mount_path", "absolute path"),
        ({"linger": -1}, "linger", "0 to 3600"),
        ({"max_pending": 0}, "max_pending", "above 0"),
        ({"pod": {"restartPolicy": "Always"}}, "pod", "retry starts the programs again"),
        ({"pod": {"containers": []}}, "pod", "keep the pod from ending"),
        ({"user": 0}, "user", "1 to 2147483647"),
        ({"container": {"command": ["x"]}}, "container", "runs the job's programs"),
        ({"groups": {"nobody": {}}}, "groups.nobody", "name of an instance group"),
        ({"groups": {"dnn_group": {"namespace": "x"}}}, "groups.dnn_group.namespace", "unknown key"),
        ({"groups": {"dnn_group": {"pod": {"hostname": "x"}}}}, "groups.dnn_group.pod", "the host's name"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_place(options: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        kube_job(options, DNN)
    (problem,) = caught.value.problems
    assert problem.field == f"{PODS}.{field}"
    assert words in f"{problem.message} {problem.hint}"


CLAIM = {"mount_path": "/data", "claim": "c"}
READ_ONLY = {**CLAIM, "read_only": True}


@pytest.mark.promise("engines", "channels, on kubernetes")
@pytest.mark.parametrize(
    ("options", "fields", "field", "words"),
    [
        ({"image": None}, {}, f"{PODS}.image", "without one: dnn_group"),
        ({"volumes": {"d": {"mount_path": "/data"}}}, {}, f"{PODS}.volumes.d", "must have one of claim"),
        ({"volumes": {"d": {**CLAIM, "host_path": "/x"}}}, {}, f"{PODS}.volumes.d", "must have one of claim"),
        ({"volumes": {"d": {**CLAIM, "mount_path": "/opt"}}}, {}, f"{PODS}.volumes.d.mount_path", "/opt/ml"),
        ({"volumes": {"d": {**CLAIM, "mount_path": "/dev/shm/x"}}}, {}, f"{PODS}.volumes.d.mount_path", "/dev/shm"),
        ({"volumes": {"a": CLAIM, "b": CLAIM}}, {}, f"{PODS}.volumes.b.mount_path", "'a'"),
        ({"container": {"env": [{"name": "PYTHONPATH", "value": "x"}]}}, {}, f"{PODS}.container.env[0]", "environment"),
        (
            {"container": {"volumeMounts": [{"name": "x", "mountPath": "/opt/ml/input"}]}},
            {},
            f"{PODS}.container.volumeMounts[0]",
            "headrace's own",
        ),
        (
            {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1G"}}},
            {},
            f"{PODS}.resources.requests.memory",
            "its limit",
        ),
        (
            {"resources": {"limits": {"nvidia.com/gpu": 1}}},
            {},
            f"{PODS}.resources.limits.nvidia.com/gpu",
            "write gpus",
        ),
        ({"user": 1000, "privileged": True}, {}, f"{PODS}.user", "not privileged"),
        (
            {"user": 1000, "groups": {"dnn_group": {"privileged": True}}},
            {},
            f"{PODS}.groups.dnn_group.user",
            "leave out user or privileged",
        ),
        ({}, {"inputs": {"training": "data"}}, "inputs.training.s3_data", "s3:// URI, or a path below the mount_path"),
        ({"volumes": {"d": CLAIM}}, {"inputs": {"t": "/data/../etc"}}, "inputs.t.s3_data", "do not see the folders"),
        ({"volumes": {"d": CLAIM}}, {"inputs": {"t": "/database"}}, "inputs.t.s3_data", "do not see the folders"),
        ({}, {"input_mode": "FastFile", "inputs": {"t": "s3://b/p"}}, "input_mode", "use File or Pipe"),
        ({}, {"output_path": "out"}, "output_path", "or leave it out"),
        ({"volumes": {"d": READ_ONLY}}, {"output_path": "/data/out"}, "output_path", "'d', which is read_only"),
        ({"volumes": {"d": READ_ONLY}}, {"checkpoint_s3_uri": "/data/c"}, "checkpoint_s3_uri", "volumes.d.read_only"),
        ({}, {"checkpoint_s3_uri": "file:///keep"}, "checkpoint_s3_uri", "s3:// URI"),
        ({"volumes": {"d": CLAIM}}, {"source_dir": "/data/code"}, "source_dir", "s3:// archive"),
        ({}, {"source_dir": None, "entry_point": None, "image_uri": "x"}, "image_uri", "does not start"),
    ],
)
def test_what_no_pod_can_have_or_reach_is_refused(
    options: dict[str, object], fields: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(JobInvalid) as caught:
        planned(options, DNN, **fields)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert words in f"{problem.message} {problem.hint}"


def test_the_innermost_volume_says_whether_an_output_may_be_written() -> None:
    inner = {"mount_path": "/data/out", "claim": "d"}
    assert planned({"volumes": {"d": READ_ONLY, "o": inner}}, DNN, output_path="/data/out/models")
    with pytest.raises(JobInvalid, match="'o', which is read_only"):
        planned({"volumes": {"d": CLAIM, "o": {**inner, "read_only": True}}}, DNN, output_path="/data/out/models")


def test_a_plan_names_namespace_and_context() -> None:
    assert planned({"namespace": "training", "context": "gpu"}, DNN).limits[0] == "namespace: training; context: gpu"
    assert planned({}, DNN).limits[0].startswith("namespace: default; context: the current one")


def test_a_channel_that_is_nowhere_is_refused_with_what_pods_see_and_by_engines_without_pods(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "job.yaml"
    text = (
        "source_dir: .\nentry_point: train.py\ninstance_type: ml.m5.large\ninstance_count: 1\ninputs: {training: %s}\n"
        "engines: {kubernetes: {image: x, volumes: {d: {mount_path: /no-such-volume, claim: c}}}}\n"
    )
    file.write_text(text % "/no-such-folder/digits")
    with pytest.raises(JobInvalid) as caught:
        load_job(file)
    (problem,) = caught.value.problems
    assert (problem.field, problem.line) == ("inputs.training", 5)
    assert "a path below the mount_path of one of engines.kubernetes.volumes" in problem.hint
    file.write_text(text % "/no-such-volume/digits")
    job = load_job(file)
    assert engines.plan(job, "kubernetes").plan
    for other in ("local", "slurm"):
        with pytest.raises(JobInvalid, match="/no-such-volume/digits does not exist") as caught:
            engines.plan(job, other)
        assert "use --engine kubernetes" in caught.value.problems[0].hint


def test_a_folder_for_checkpoints_is_below_opt_ml() -> None:
    with pytest.raises(EngineRefused, match="checkpoint_local_path"):
        planned({}, DNN, checkpoint_s3_uri="s3://b/c", checkpoint_local_path="/ckpt")
    assert planned({}, DNN, checkpoint_s3_uri="s3://b/c", checkpoint_local_path="/opt/ml/checkpoints")


def test_the_image_of_sagemaker_will_do_and_a_group_may_have_its_own() -> None:
    case = planned({"image": None, "groups": {"data_group": {"image": "cpu:1"}}}, DATA, DNN, image_uri="gpu:1")
    assert (case.image_of("data_group"), case.image_of("dnn_group")) == ("cpu:1", "gpu:1")


LEAST = {"requests": {"cpu": "500m", "memory": "512Mi"}}


def test_a_pod_asks_for_a_little_of_what_the_job_says_nothing_of() -> None:
    def asked(**resources: object) -> dict[str, dict[str, str]]:
        return planned({"resources": resources}, DATA).resources_of("data_group")

    assert asked() == LEAST
    # What has a limit alone is requested as much, by Kubernetes itself.
    assert asked(limits={"memory": "1Gi"}) == {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}
    assert asked(requests={"cpu": 0}) == {"requests": {"cpu": "0", "memory": "512Mi"}}


@pytest.mark.promise("engines", "limits, on kubernetes")
def test_gpus_follow_from_the_instance_type_unless_they_are_given() -> None:
    resources = planned({}, DATA, DNN).resources_of
    assert resources("data_group") == LEAST
    assert resources("dnn_group") == {**LEAST, "limits": {"nvidia.com/gpu": "1"}}
    assert planned({"gpus": 0}, DNN).resources_of("dnn_group") == LEAST
    assert planned({"groups": {"dnn_group": {"gpus": 4}}}, DNN).resources_of("dnn_group")["limits"] == {
        "nvidia.com/gpu": "4"
    }


@pytest.mark.promise("engines", "limits, on kubernetes")
def test_the_size_of_the_instance_type_is_asked_for_on_demand_and_never_above_a_limit() -> None:
    assert planned({"size_of_instance": True}, DATA).resources_of("data_group") == {
        "requests": {"cpu": "4", "memory": "8192Mi"}
    }
    limited = planned({"size_of_instance": True, "resources": {"limits": {"cpu": 2}}}, DATA)
    assert limited.resources_of("data_group") == {"requests": {"memory": "8192Mi"}, "limits": {"cpu": "2"}}


def test_data_workers_fill_the_cpus_that_a_pod_may_use() -> None:
    def workers(**options: object) -> int:
        return planned(options, DATA, DNN, data_service=FEED).plan.group("data_group").feed_executors

    assert workers(resources={"limits": {"cpu": "3500m"}}) == 3
    assert workers() == 1  # until the pods know


def test_what_the_options_of_a_group_leave_out_is_that_of_all_groups() -> None:
    options = CASES["two_groups"].options
    data, dnn = options.pods_of("data_group"), options.pods_of("dnn_group")
    assert (data.service_account, dnn.service_account) == ("trainer", "trainer")
    assert (data.shm, dnn.shm) == ("8Gi", "8Gi")
    assert (data.image, dnn.image) == ("registry.example.com/data:1", "registry.example.com/torch:2.5")
    assert (data.priority_class, dnn.priority_class) == (None, "high")


def test_what_has_no_effect_on_pods_is_listed_and_an_image_has_one() -> None:
    job = kube_job({}, DNN, image_uri="x", use_spot_instances=True, volume_size=3)
    assert {each.field for each in job.without_effect("kubernetes")} == {"use_spot_instances", "volume_size"}


def test_a_job_file_may_name_a_folder_of_a_volume_which_is_not_on_this_machine(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    job = load_job(write(tmp_path))
    assert isinstance(job, Job)
    case = planned_of(job)
    assert case.orders[0].is_link
    check_kubernetes_job(case)  # the folder is looked for nowhere
    with pytest.raises(JobInvalid, match="/data/digits"):
        job.check_files()  # as an engine does whose hosts are here


def planned_of(job: Job) -> KubernetesJob:
    return plan_kubernetes_job(job, RunPaths(runs_dir() / job.job_name))


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Path], Path]:
    """Writes a job file whose channel is on a volume."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))

    def write_in(folder: Path) -> Path:
        (folder / "train.py").write_text("")
        file = folder / "digits.yaml"
        file.write_text(
            "entry_point: train.py\ninstance_type: ml.c5.xlarge\ninstance_count: 1\n"
            "inputs: {training: /data/digits}\noutput_path: /data/out\n"
            "engines: {kubernetes: {image: x, volumes: {d: {mount_path: /data, claim: c}}}}\n"
        )
        return file

    return write_in


def test_a_run_whose_directory_no_pod_can_have_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "a:b"))
    with pytest.raises(EngineRefused, match="no pod can have"):
        check_kubernetes_job(planned_of(kube_job({}, DNN)))


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [("2", 2), ("500m", 0.5), ("1.5Gi", 1.5 * 2**30), ("1k", 1000), ("1M", 10**6), ("2e3", 2000), ("1E", 10**18)],
)
def test_quantities_are_read_as_kubernetes_reads_them(quantity: str, amount: float) -> None:
    assert amount_of(quantity) == pytest.approx(amount)


def test_the_plan_shows_the_python_of_the_image_and_what_each_hosts_pod_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    given = {"image": "local/host:1", "python": "/opt/conda/bin/python", "gpus": 0}
    small = {"size_of_instance": False, "resources": {"limits": {"cpu": 2, "memory": "4Gi"}}}
    bare = {"size_of_instance": False}
    groups = [{**DNN, "count": 1}, DATA, {**DATA, "name": "bare"}]
    job = {
        "job_name": "demo",
        "source_dir": "code",
        "entry_point": "train.py",
        "instance_groups": groups,
        "engines": {"kubernetes": {**given, "groups": {"dnn_group": {"gpus": 2}, "data_group": small, "bare": bare}}},
    }
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job))
    assert invoke(["plan", str(file), "--engine", "kubernetes", "--output", "json"]) == 0
    hosts = {host["group"]: host for host in json.loads(capsys.readouterr().out)["hosts"]}
    assert {host["programs"][0]["argv"][0] for host in hosts.values()} == {"/opt/conda/bin/python"}
    assert {name: host["pod"] for name, host in hosts.items()} == {
        "dnn_group": "pod: cpu 500m, memory 512Mi, 2 GPUs",
        "data_group": "pod: cpu 2 at most, memory 4Gi at most",
        "bare": "pod: cpu 500m, memory 512Mi",
    }

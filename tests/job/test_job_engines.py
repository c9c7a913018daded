"""What one engine refuses, and what has no effect in it: nothing of a job is dropped in silence."""

from __future__ import annotations

import pytest

from headrace.errors import EngineRefused, JobInvalid
from headrace.job import Job
from headrace.job.problems.finding import Finding
from headrace.job.rules.engine_rules import own_hosts, service_rules

GROUPS = [
    {"name": "a", "type": "ml.c5.xlarge", "count": 1},
    {"name": "b", "type": "ml.p4d.24xlarge", "count": 2},
]


def job(**fields: object) -> Job:
    base: dict[str, object] = {"source_dir": "code", "entry_point": "train.py", "instance_groups": GROUPS}
    return Job("demo", **{key: value for key, value in {**base, **fields}.items() if value is not None})  # type: ignore[arg-type]


def world(kind: str, *names: str, **options: object) -> dict[str, object]:
    return {kind: {"enabled": True, **options}, "instance_groups": list(names)}


@pytest.mark.parametrize(
    ("distribution", "field", "instead"),
    [
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, "smdistributed.dataparallel", "torch_distributed"),
        (
            {"smdistributed": {"modelparallel": {"enabled": True}}, "mpi": {"enabled": True}},
            "smdistributed.modelparallel",
            "FullyShardedDataParallel",
        ),
        ({"parameter_server": {"enabled": True}}, "parameter_server", "multi_worker_mirrored_strategy"),
        ({"pytorchddp": {"enabled": True}}, "pytorchddp", "torch_distributed"),
        ({"pytorchxla": {"enabled": True}}, "pytorchxla", "torch_distributed"),
    ],
)
def test_a_library_of_sagemaker_is_valid_in_a_job_and_refused_here_with_what_to_use_instead(
    distribution: dict[str, object], field: str, instead: str
) -> None:
    one = job(distribution={**distribution, "instance_groups": ["b"]})
    assert one.distributions[0].kind == field
    assert list(service_rules(one)) == []
    with pytest.raises(JobInvalid) as caught:
        one.check_engine("local")
    (problem,) = caught.value.problems
    assert (problem.field, problem.message) == (f"distribution.{field}", f"{field} runs on SageMaker only")
    assert instead in problem.hint
    off = job(distribution={"parameter_server": {"enabled": False}})
    off.check_engine("local")


@pytest.mark.parametrize(
    ("distribution", "field", "words"),
    [
        (world("mpi", "a", "b"), "distribution.instance_groups", "should only contain one instance group name !"),
        (
            [world("mpi", "a"), world("torch_distributed", "b")],
            "distribution[1]",
            "SageMaker starts one distribution in a job",
        ),
    ],
)
def test_what_sagemaker_cannot_start_is_refused_for_it_and_runs_here(
    distribution: object, field: str, words: str
) -> None:
    one = job(distribution=distribution)
    one.check_engine("local")
    with pytest.raises(JobInvalid) as caught:
        one.check_engine("sagemaker")
    (problem,) = (each for each in caught.value.problems if each.field.startswith("distribution"))
    assert problem.field == field
    assert words in problem.message


def test_trainium_runs_torch_distributed_only_on_sagemaker() -> None:
    groups = [{"name": "t", "type": "ml.trn1.32xlarge", "count": 1}]
    one = job(instance_groups=groups, distribution=world("mpi", "t"))
    assert [finding.message for finding in service_rules(one)] == [
        "Provided distribution strategy mpi is not supported for Trainium instances."
    ]
    torch = job(instance_groups=groups, distribution=world("torch_distributed", "t"))
    assert not list(service_rules(torch))


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"source_dir": None, "entry_point": None, "image_uri": "x"}, "image_uri", "runs no images"),
        (
            {"source_dir": None, "entry_point": "-m train", "image_uri": "x"},
            "source_dir",
            "cannot take the code from an image",
        ),
        ({"inputs": {"a": "https://s3.eu-west-1.amazonaws.com/bucket/x"}}, "inputs.a.s3_data", "s3:// URIs"),
        ({"output_path": "https://bucket.s3.amazonaws.com/x"}, "output_path", "s3:// URIs"),
        (
            {"request_extras": {"InputDataConfig": [{"ChannelName": "d", "DataSource": {"FileSystemDataSource": {}}}]}},
            "request_extras.InputDataConfig[0]",
            "'d' has its data in FileSystemDataSource",
        ),
    ],
)
def test_what_this_machine_cannot_do_is_refused_with_a_hint(fields: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        job(**fields).check_engine("local")
    (problem,) = caught.value.problems
    assert problem.field == field
    assert words in problem.message
    assert problem.hint


def test_a_channel_of_a_file_system_runs_here_once_its_folder_is_named() -> None:
    extras = {"InputDataConfig": [{"ChannelName": "d", "DataSource": {"FileSystemDataSource": {}}}]}
    job(request_extras=extras, inputs={"d": "data"}).check_engine("local")


def test_an_https_address_of_s3_is_shown_as_an_s3_uri() -> None:
    for text, uri in [
        ("https://s3.eu-west-1.amazonaws.com/bucket/x", "s3://bucket/x"),
        ("https://bucket.s3.amazonaws.com/x/y", "s3://bucket/x/y"),
    ]:
        (finding,) = own_hosts(job(output_path=text), "local")
        assert finding.hint == f"write {uri}"


def test_an_engine_that_does_not_exist_is_refused() -> None:
    for call in (job().check_engine, job().without_effect):
        with pytest.raises(EngineRefused, match="no engine is called 'lokal'"):
            call("lokal")


IDLE: dict[str, object] = {
    "image_uri": "i",
    "role": "r",
    "framework_version": "2.1",
    "py_version": "py311",
    "volume_size": 30,
    "volume_kms_key": "k",
    "output_kms_key": "k",
    "code_location": "s3://b/c",
    "subnets": ["s"],
    "security_group_ids": ["g"],
    "enable_network_isolation": True,
    "use_spot_instances": True,
    "keep_alive_period_in_seconds": 60,
    "training_plan": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p",
    "tags": [{"key": "a", "value": "b"}],
}


def test_every_key_without_effect_is_listed_and_no_other() -> None:
    stops = {"max_run": 60, "max_wait": 60, "max_pending_time": 1800}
    extras = {
        "ProfilerConfig": {"DisableProfiler": True},
        "HyperParameters": {"sagemaker_region": '"x"', "sagemaker_program": "train.py", "rate": "1e-3"},
        "AlgorithmSpecification": {"EnableSageMakerMetricsTimeSeries": True},
        "InputDataConfig": [{"ChannelName": "d"}, {"ChannelName": "e", "DataSource": {}}],
    }
    values = [{"name": "a", "regex": "a=([0-9]+)"}]  # they have an effect
    rate = {"rate": 0.001}
    full = job(**IDLE, metric_definitions=values, stopping_condition=stops, request_extras=extras, hyperparameters=rate)
    listed = [unused.field for unused in full.without_effect("local")]
    assert sorted(listed) == sorted(
        [
            *IDLE,
            "stopping_condition.max_wait",
            "stopping_condition.max_pending_time",
            "request_extras.ProfilerConfig",
            "request_extras.AlgorithmSpecification.EnableSageMakerMetricsTimeSeries",
            "request_extras.InputDataConfig.e",
        ]
    )
    assert all(unused.why for unused in full.without_effect("local"))
    assert job().without_effect("local") == ()
    elsewhere = job(engines={"local": {"stop_grace": 1}}).without_effect("sagemaker")
    assert elsewhere[0].field == "engines.local.stop_grace"


def test_encryption_is_refused_here_where_tf_data_service_would_talk_in_clear() -> None:
    data = {"tf_data": {"enabled": True}, "instance_groups": ["a"]}
    one = job(data_service=data, encrypt_inter_container_traffic=True)
    with pytest.raises(JobInvalid) as caught:
        one.check_engine("local")
    (problem,) = caught.value.problems
    assert problem.field == "encrypt_inter_container_traffic"
    assert "no TLS" in problem.message
    assert not list(service_rules(one)), "there the network does it"
    job(data_service=data).check_engine("local")


@pytest.mark.promise("own-engine", "an engine of your own is found by entry point, and every command takes its runs")
def test_options_of_an_installed_engine_of_somebody_else_are_kept_as_they_are(monkeypatch) -> None:
    monkeypatch.setattr("headrace.job.rules.job_rules.engine_names", lambda: ("local", "mine"))
    options = {"mine": {"queue": "long", "nodes": {"a": [1, None]}}}
    one = job(engines={"local": {"stop_grace": 1}, **options})
    assert one.engine_options("mine") == options["mine"]
    assert one.engine_options("other") == {}
    assert one.to_data()["engines"]["mine"] == options["mine"]
    again = Job(**one.to_data())
    assert (again == one, again.local.stop_grace) == (True, 1)
    assert again != job(engines={"mine": {"queue": "short"}})
    with pytest.raises(JobInvalid) as caught:
        job(engines={"local": {"stop_grace": -1}, "mine": 3, "mime": {}, "batch": {}})
    told = {problem.field: problem.message for problem in caught.value.problems}
    assert told["engines.mine"] == "must be a mapping"
    assert told["engines.mime"] == "unknown key; did you mean 'mine'?", "an installed one"
    assert {"engines.local.stop_grace", "engines.batch"} <= told.keys()


@pytest.mark.promise("scale", "a job has at most 1,000 hosts, 254 of them on one machine")
def test_a_thousand_hosts_are_a_job_and_254_of_them_find_addresses_on_one_machine() -> None:
    groups = [{"name": "a", "type": "ml.c5.xlarge", "count": 600}, {"name": "b", "type": "ml.c5.xlarge", "count": 400}]
    wide = job(instance_groups=groups)
    wide.check_engine("slurm")
    with pytest.raises(JobInvalid) as caught:
        wide.check_engine("local")
    (problem,) = caught.value.problems
    assert problem.field == "instance_groups"
    assert "at most 254 hosts on this machine" in problem.message
    assert problem.value == "1000 hosts"


def test_a_path_of_a_finding_that_is_one_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a finding's path is a tuple .* not 'queue'"):
        Finding("queue", "must be short")  # type: ignore[arg-type]

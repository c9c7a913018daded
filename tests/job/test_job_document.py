"""The text of a job file: how values are read, how a job is written, and that both fit together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from effort import SOAK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snippets import ONE

from headrace.errors import JobInvalid
from headrace.job import Job, load_job


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("1E6", 1e6),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("12:30:00", "12:30:00"),
        ("2026-01-01", "2026-01-01"),
        ("0,1", "0,1"),
        ("'3'", "3"),
        ('"a\\nb"', "a\nb"),
        ("!!str 3", "3"),
        (r'"\ud83d\ude00"', "\U0001f600"),  # as json.dumps writes it
        ("[1, [a], {b: null}]", [1, ["a"], {"b": None}]),
        ("&x [1]", [1]),
        ("{on: 1, 2: 3}", {"on": 1, "2": 3}),
    ],
)
def test_a_hyperparameter_is_read_as_yaml_1_2(load: Callable[..., Job], text: str, value: object) -> None:
    read = load(ONE + f"hyperparameters:\n  k: {text}\n").hyperparameters["k"]
    assert read == value
    assert type(read) is type(value)


def test_an_alias_is_read_as_what_it_names(load: Callable[..., Job]) -> None:
    job = load(ONE + "hyperparameters:\n  a: &x [1, 2]\n  b: *x\n")
    assert job.hyperparameters == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("job", "job"),
        ("my_job v2", "my-job-v2"),
        ("__x__", "x"),
        ("été", "t"),
        ("...", "job"),
        ("a" * 62 + "-b" * 5, "a" * 54 + "-aea91305"),  # cut, with a digest of the whole: long names stay apart
        ("a" * 70, "a" * 54 + "-6bd5e503"),
    ],
)
def test_a_job_without_a_name_is_named_after_its_file(tmp_path: Path, stem: str, name: str) -> None:
    (tmp_path / "train.py").touch()
    file = tmp_path / f"{stem}.yaml"
    file.write_text("source_dir: .\nentry_point: train.py\ninstance_type: ml.c5.xlarge\ninstance_count: 1\n")
    assert load_job(file).job_name == name
    assert load_job(file).base_path == tmp_path


def test_relative_paths_belong_to_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there" / "data").mkdir(parents=True)
    (tmp_path / "there" / "train.py").touch()
    (tmp_path / "there" / "job.yaml").write_text(
        ONE.replace("source_dir: code", "source_dir: .") + "inputs: {a: data}\n"
    )
    monkeypatch.chdir(tmp_path)
    job = load_job("there/job.yaml")
    assert job.base_path == tmp_path / "there"
    assert job.inputs["a"].local_path(job.base_path) == tmp_path / "there" / "data"


def test_a_program_in_place_of_a_job_file_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(JobInvalid) as caught:
        load_job(tmp_path / "train.py")
    hint = f"hint: `headrace init {tmp_path}/train.py` writes a job file for it"
    assert f"is a program, not a job file\n{hint}" in str(caught.value)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda path: None, "job file: does not exist"),
        (lambda path: path.mkdir(), "job file: is a folder"),
        (lambda path: path.write_bytes(b"a: 1\nb: \xff\n"), ":2: job file: must be UTF-8 text"),
        (lambda path: (path.parent / "file").touch() or path.symlink_to("file/x"), "job file: cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path, prepare: Callable[[Path], object], words: str) -> None:
    prepare(tmp_path / "job.yaml")
    with pytest.raises(JobInvalid) as caught:
        load_job(tmp_path / "job.yaml")
    assert words in str(caught.value)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n"), min_size=1, max_size=20).filter(
    lambda text: not text.startswith("sagemaker_")
)
AWKWARD = st.sampled_from(
    [
        "yes",
        "null",
        "~",
        "1e-3",
        "0o17",
        "010",
        "1_000",
        "12:30",
        "=",
        "<<",
        "- a",
        "# x",
        " a ",
        "\x85",
        "",
        "'",
        ".inf",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT | AWKWARD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | AWKWARD, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.lists(LINE, min_size=1, max_size=5, unique=True)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    names = draw(NAMES)
    some = st.lists(st.sampled_from(names), min_size=1, unique=True)
    fields: dict[str, object] = {
        "instance_groups": [
            {
                "name": name,
                "type": draw(st.sampled_from(["ml.c5.xlarge", "ml.p4d.24xlarge"])),
                "count": draw(st.integers(1, 50)),
            }
            for name in names
        ]
    }
    if len(names) == 1 and draw(st.booleans()):
        fields = {"instance_type": "ml.c5.xlarge", "instance_count": draw(st.integers(1, 1000))}
        some = st.just(["homogeneousCluster"])
        names = ["homogeneousCluster"]
    if draw(st.booleans()):
        strategy = {"enabled": True, **draw(st.fixed_dictionaries({}, optional={"processes_per_host": st.just(3)}))}
        kind = draw(st.sampled_from(["torch_distributed", "mpi", "horovod"]))
        members = draw(some)
        world = {kind: strategy, "instance_groups": members}
        fields["distribution"] = draw(st.sampled_from([world, [world]]))
        others = [name for name in names if name not in members]
        if others and draw(st.booleans()):
            second = {"multi_worker_mirrored_strategy": {"enabled": True}, "instance_groups": others}
            fields["distribution"] = [world, second]
    if draw(st.booleans()):
        feed = {"enabled": True, "workers_per_host": draw(st.sampled_from(["auto", 3]))}
        fields["data_service"] = {"feed": feed, "instance_groups": draw(some)}
    for index, group in enumerate(fields.get("instance_groups", [])):  # type: ignore[var-annotated, arg-type]
        own = {
            "hyperparameters": st.dictionaries(LINE, JSON, max_size=2),
            "environment": st.just({"A": " a "}),
            "entry_point": st.sampled_from(["-m a.b", "deep/train.py"]),
            "depends_on": st.just(names[:index] or None),
            "ready": st.fixed_dictionaries({}, optional={"port": st.just(9), "timeout": st.just(2)}),
        }
        given = draw(st.fixed_dictionaries({}, optional=own))
        group.update({key: value for key, value in given.items() if value is not None})
    extra = {
        "tags": st.just([{"key": "a", "value": "é"}]),
        "retry": st.just({"attempts": 2}),
        "checkpoint_s3_uri": st.just("s3://bucket/c"),
        "encrypt_inter_container_traffic": st.booleans(),
        "use_spot_instances": st.booleans(),
        "role": LINE,
        "volume_size": st.integers(0, 9),
        "request_extras": st.dictionaries(LINE, JSON, max_size=2),
    }
    fields |= draw(st.fixed_dictionaries({}, optional=extra))
    if draw(st.booleans()):
        fields["completion"] = {"instance_groups": draw(some)}
    if draw(st.booleans()):
        option = draw(st.sampled_from([{"cpu_sets": {names[0]: "0-3,5"}}, {"cpu_shares": dict.fromkeys(names, 0.5)}]))
        fields["engines"] = {"local": {**option, "stop_grace": draw(st.floats(0, 3600))}}
    channels = draw(st.lists(st.from_regex(r"\A[a-z0-9_-]{1,9}\Z"), max_size=3, unique=True))
    limited = {"instance_groups": draw(some)} if draw(st.booleans()) else {}
    if channels:
        fields["inputs"] = {
            name: {"path": "data", "content_type": draw(LINE), **limited} for name in channels if name != "headrace"
        } or None
    return Job(
        "demo",
        source_dir="code",
        entry_point="train.py",
        hyperparameters=draw(st.dictionaries(LINE, JSON, max_size=4)),
        environment=draw(st.dictionaries(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,9}\Z"), TEXT | AWKWARD, max_size=3)),
        stopping_condition={"max_run": draw(st.integers(1, 2419200))},
        **fields,  # type: ignore[arg-type]
    )


@settings(max_examples=60 if SOAK else 25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(job=jobs())
def test_loading_what_to_yaml_or_to_json_wrote_gives_an_equal_job(write: Callable[[str], Path], job: Job) -> None:
    assert load_job(write(job.to_yaml())) == job
    assert load_job(write(job.to_json())) == job


def test_the_json_form_has_the_keys_of_the_job_file_and_every_default(load: Callable[..., Job]) -> None:
    data = json.loads(load(ONE + "inputs:\n  training: data\nhyperparameters: {a: null}\n").to_json())
    assert data == {
        "job_name": "demo",
        "source_dir": "code",
        "entry_point": "train.py",
        "hyperparameters": {"a": None},
        "hyperparameters_as": "arguments",
        "instance_type": "ml.c5.xlarge",
        "instance_count": 1,
        "input_mode": "File",
        "inputs": {"training": {"s3_data": "data", "distribution": "FullyReplicated", "s3_data_type": "S3Prefix"}},
        "checkpoint_local_path": "/opt/ml/checkpoints",
        "stopping_condition": {"max_run": 86400},
        "earlier_output": "replace",
        "engines": {
            "local": {
                "stop_grace": 30.0,
                "address_prefix": "127.0.1",
                "isolation": "auto",
                "limits": "auto",
            }
        },
    }


def test_two_jobs_that_ask_for_different_things_are_not_equal(load: Callable[..., Job]) -> None:
    assert load(ONE) == load(ONE)
    assert load(ONE) != load(ONE, "hyperparameters.a=1")
    assert load(ONE) != "demo"


HUGE = {
    "10 MB": ("a: " + "x" * 10_000_000, "must have at most 4 MB"),
    "keys": ("\n".join(f"k{n}: 1" for n in range(20_000)), "unknown key"),
    "values": ("a: [" + "1," * 100_000 + "1]", "must hold at most 100000 values"),
    "groups": (
        "instance_groups:\n" + "\n".join(f"  - {{name: g{n}}}" for n in range(10_000)), "must have 1 to 5 instance"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE if SOAK else ["10 MB", "keys"])
def test_a_huge_file_is_refused_in_bounded_time_and_memory(tmp_path: Path, name: str) -> None:
    text, words = HUGE[name]
    (tmp_path / "job.yaml").write_text(text)
    code = (
        "import re, sys, time\n"
        "from pathlib import Path\n"
        "from headrace.job import load_job\n"
        "from headrace.errors import JobInvalid\n"
        "try:\n    load_job(sys.argv[1])\n"
        "except JobInvalid as error:\n    print(str(error)[:4000])\n"
        # Not getrusage: its peak counts what the parent had before exec.
        "peak = int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "print(peak // 1024, round(time.process_time()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "job.yaml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert words in done.stdout
    megabytes, seconds = map(int, done.stdout.split()[-2:])
    assert megabytes < 500
    assert seconds < 30


def test_reading_stops_at_the_limit_of_a_file_without_end(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").symlink_to("/dev/zero")
    with pytest.raises(JobInvalid, match="must have at most 4 MB"):
        load_job(tmp_path / "job.yaml")


@pytest.mark.parametrize(
    "value", ["a'b\"c", "two\nlines", "$(touch x)", "; rm -rf x", "ünï\u2028çødé", "", " ", "--flag", "\\"]
)
def test_a_value_goes_through_unharmed(write: Callable[[str], Path], value: str) -> None:
    job = load_job(write(ONE), ["hyperparameters.a=x"])
    made = Job(**{**job.to_data(), "hyperparameters": {"a": value}, "environment": {"A": value}})  # type: ignore[arg-type]
    again = load_job(write(made.to_yaml()))
    assert again.hyperparameters == {"a": value}
    assert again.environment == {"A": value}
    assert json.loads(again.hyperparameter_texts_of("homogeneousCluster")["a"]) == value

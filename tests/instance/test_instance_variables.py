"""The variables of a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.instance import Environment, program_variables
from headrace.instance.environment import format_name, format_value
from headrace.instance.toolkit import SEARCH_PATH
from headrace.instance.variables import LEFT_OUT

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(json_values)
def test_a_string_is_itself_none_is_empty_and_the_rest_is_compact_sorted_ascii_json(value: object) -> None:
    formatted = format_value(value)
    if value is None:
        assert formatted == ""
    elif isinstance(value, str):
        assert formatted == value
    else:
        assert json.loads(formatted) == value
        assert formatted.isascii()
        assert formatted == json.dumps(json.loads(formatted), sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, "true"), (["a"], '["a"]'), ({"b": 1, "a": None}, '{"a":null,"b":1}'), ("true", "true"), (1.0, "1.0")],
)
def test_formatting_examples(value: object, expected: str) -> None:
    assert format_value(value) == expected


def test_names_are_upper_case_and_keep_hyphens() -> None:
    assert format_name("hp_batch-size") == "SM_HP_BATCH-SIZE"


def test_every_directory_variable_points_into_the_tree(job, make_plan) -> None:
    variables = program_variables(
        job.environment("algo-3", channels={"training": job.channel("training")}), make_plan()
    )
    base = str(job.root / "algo-3")
    directories = {name: value for name, value in variables.items() if name.endswith("_DIR")}
    assert directories.pop("SAGEMAKER_BASE_DIR") == base
    assert sorted(directories) == [
        "SM_INPUT_CONFIG_DIR",
        "SM_INPUT_DATA_DIR",
        "SM_INPUT_DIR",
        "SM_MODEL_DIR",
        "SM_MODULE_DIR",
        "SM_OUTPUT_DATA_DIR",
        "SM_OUTPUT_DIR",
        "SM_OUTPUT_INTERMEDIATE_DIR",
        "SM_SOURCE_DIR",
    ]
    directories["SM_CHANNEL_TRAINING"] = variables["SM_CHANNEL_TRAINING"]
    for name, value in directories.items():
        assert value.startswith(f"{base}/"), name
        assert os.path.isdir(value), name  # a string, as a program has it


@pytest.mark.promise("sagemaker", "`/opt/ml`, `SM_*` and `resourceconfig.json` are the service's, byte for byte")
@pytest.mark.parametrize(("host", "rank"), [("algo-1", "0"), ("algo-2", "1"), ("algo-3", "0"), ("algo-4", "1")])
def test_each_host_knows_itself_its_rank_and_the_master(job, make_plan, host: str, rank: str) -> None:
    variables = program_variables(job.environment(host), make_plan())
    assert variables["SM_CURRENT_HOST"] == variables["CURRENT_HOST"] == host
    assert variables["SM_CURRENT_HOST_RANK"] == rank
    assert variables["SM_DISTRIBUTION_HOSTS"] == '["algo-3","algo-4"]'
    assert (variables["SM_MASTER_ADDR"], variables["SM_MASTER_PORT"]) == ("127.0.1.3", "7799")
    trains = host in ("algo-3", "algo-4")
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("127.0.1.3" if trains else "127.0.1.1", "7799")


def test_without_a_distribution_the_rank_is_the_place_among_all_hosts(job, make_plan) -> None:
    variables = program_variables(job.environment("algo-3", distributions=()), make_plan(world=()))
    assert variables["SM_CURRENT_HOST_RANK"] == "2"
    assert variables["SM_DISTRIBUTION_HOSTS"] == "[]"
    assert variables["SM_MASTER_ADDR"] == "127.0.1.1"
    assert variables["MASTER_ADDR"] == "127.0.1.3", "the first of its own group: the others run something else"
    own = make_plan(world=(), environment={"MASTER_ADDR": "here", "MASTER_PORT": "1"})
    variables = program_variables(job.environment("algo-3", distributions=()), own)
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("here", "1")


def test_without_a_plan_hosts_are_known_by_name(job) -> None:
    variables = program_variables(job.environment("algo-1"))
    assert (variables["SM_MASTER_ADDR"], variables["SM_MASTER_PORT"]) == ("algo-3", "7777")
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("algo-1", "7777")


def test_cpus_are_those_of_the_plan(job, make_plan) -> None:
    import msgspec

    plan = make_plan()
    plan = msgspec.structs.replace(
        plan, hosts=tuple(msgspec.structs.replace(host, cpus=(4, 5, 6)) for host in plan.hosts)
    )
    variables = program_variables(job.environment("algo-1"), plan)
    assert variables["SM_NUM_CPUS"] == "3"
    assert json.loads(variables["SM_TRAINING_ENV"])["num_cpus"] == 3


def test_the_users_variables_are_there_but_cannot_lie_about_the_host(job, make_plan) -> None:
    user = {"MY_FLAG": "a b", "SM_CURRENT_HOST": "algo-9", "SAGEMAKER_BASE_DIR": "/tmp", "PYTHONUNBUFFERED": "0"}
    variables = program_variables(job.environment("algo-1"), make_plan(environment=user))
    assert variables["MY_FLAG"] == "a b"
    assert variables["SM_CURRENT_HOST"] == "algo-1"
    assert variables["SAGEMAKER_BASE_DIR"] == str(job.root / "algo-1")
    assert variables["PYTHONUNBUFFERED"] == "0"


def test_the_job_is_the_plans_also_when_headrace_runs_inside_another_job(job, make_plan) -> None:
    env = Environment(job.tree("algo-1"), environ={"TRAINING_JOB_NAME": "the-job-around-it"})
    variables = program_variables(env, make_plan())
    assert variables["TRAINING_JOB_NAME"] == variables["SAGEMAKER_JOB_NAME"] == "the-job"
    assert json.loads(variables["SM_TRAINING_ENV"])["job_name"] == "the-job"


def test_the_code_directory_is_first_on_the_python_path(job, make_plan) -> None:
    env = job.environment("algo-1")
    code = f"{job.root}/algo-1/code"
    assert program_variables(env, make_plan(), inherited={})["PYTHONPATH"] == f"{code}:{SEARCH_PATH}"
    plan = make_plan(environment={"PYTHONPATH": "/user"})
    assert program_variables(env, plan, inherited={"PYTHONPATH": "/a:/b"})["PYTHONPATH"] == (
        f"{code}:/user:/a:/b:{SEARCH_PATH}"
    )


def test_a_relative_python_path_still_leads_there_from_the_code_directory(job, make_plan, monkeypatch) -> None:
    monkeypatch.chdir(job.root)
    variables = program_variables(job.environment("algo-1"), make_plan(), inherited={"PYTHONPATH": "src::/b"})
    assert variables["PYTHONPATH"] == f"{job.root}/algo-1/code:{job.root}/src:/b:{SEARCH_PATH}"


def test_a_hyphen_has_an_alias_that_a_shell_can_read_unless_the_name_is_taken(job, make_plan) -> None:
    values = {"batch-size": 64, "learning-rate": 0.1, "learning_rate": 0.2}
    variables = program_variables(job.environment("algo-1", hyperparameters=values), make_plan())
    assert variables["SM_HP_BATCH-SIZE"] == variables["SM_HP_BATCH_SIZE"] == "64"
    assert (variables["SM_HP_LEARNING-RATE"], variables["SM_HP_LEARNING_RATE"]) == ("0.1", "0.2")


def test_a_job_of_the_largest_size_still_starts_a_program(job, make_plan) -> None:
    """100 hyperparameters of 2,500 characters: SM_HPS alone is longer than the kernel lets one variable be."""
    values: dict[str, object] = {f"p{index}": "x" * 2500 for index in range(99)}
    values["a=b"] = 1
    env = job.environment("algo-1", hyperparameters=values)
    variables = program_variables(env, make_plan())
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, *env.to_cmd_args()],
        env=variables,
        capture_output=True,
        timeout=30,
        check=True,
    )
    received = json.loads(done.stdout)
    assert received["SM_HP_P98"] == "x" * 2500
    assert json.loads(received[LEFT_OUT]) == ["SM_HPS", "SM_TRAINING_ENV", "SM_USER_ARGS", "SM_HP_A=B"]
    assert "SM_HPS" not in received


def test_the_longest_variable_that_the_kernel_takes_is_kept(job, make_plan) -> None:
    size = 131_071 - len("SM_HP_X=")
    env = job.environment("algo-1", hyperparameters={"x": "x" * size, "y": "y" * (size + 1)})
    variables = program_variables(env, make_plan())
    assert "SM_HP_X" in variables
    assert "SM_HP_Y" not in variables
    subprocess.run([sys.executable, "-S", "-c", ""], env=variables, timeout=30, check=True)


def test_the_environment_can_say_its_own_toolkit_variables(job) -> None:
    env = job.environment("algo-1")
    variables = env.to_env_vars()
    assert variables["SM_HP_EPOCHS"] == "3"
    assert variables["SM_USER_ARGS"] == '["--epochs","3"]'
    assert all(name.startswith("SM_") for name in variables)
    assert "SM_MASTER_ADDR" not in variables


def test_a_region_is_told_where_one_is_known_and_never_made_up(job, make_plan) -> None:
    def regions(user: dict[str, str], around: dict[str, str], texts: dict[str, str]) -> tuple[str | None, str]:
        tree = job.tree("algo-1", texts=texts)
        plan = msgspec.structs.replace(make_plan(), environment=user)
        seen = user | program_variables(Environment(tree, environ=around | user), plan)
        return seen.get("AWS_REGION"), seen["SAGEMAKER_REGION"]

    asked = {"sagemaker_region": '"us-west-2"'}
    assert regions({}, {"AWS_REGION": "eu-west-1"}, asked) == ("us-west-2", "us-west-2")
    assert regions({"AWS_REGION": "eu-west-3"}, {"AWS_REGION": "eu-west-1"}, {}) == ("eu-west-3", "eu-west-3")
    assert regions({}, {"AWS_DEFAULT_REGION": "eu-west-1"}, {}) == ("eu-west-1", "eu-west-1")
    assert regions({}, {}, {}) == (None, "")


def test_the_jobs_arn_is_that_of_its_description(job, make_plan) -> None:
    plan = msgspec.structs.replace(make_plan(), job_arn="arn:aws:sagemaker:x:0:training-job/j")
    assert program_variables(job.environment("algo-1"), plan)["TRAINING_JOB_ARN"] == plan.job_arn
    assert "TRAINING_JOB_ARN" not in program_variables(job.environment("algo-1"), make_plan())

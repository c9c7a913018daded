"""The batch script that a job becomes, word for word: the files in `slurm_scripts` are what sbatch gets."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.engines.local.host_limits import Machine
from headrace.engines.slurm.allocation import components, hosts_by_task
from headrace.engines.slurm.slurm_job import Places, SlurmJob, batch_script, plan_slurm_job
from headrace.errors import EngineRefused, JobInvalid
from headrace.job import Job
from headrace.runs import RunPaths

GOLDEN = Path(__file__).parent / "slurm_scripts"
PLACES = Places(
    run="/shared/my runs/demo-20261122-130000-00ff",
    run_id="demo-20261122-130000-00ff",
    python="/shared/venv/bin/python",
    package="/shared/venv/lib/python3.11/site-packages",
)
DATA = {"name": "data_group", "type": "ml.c5.xlarge", "count": 2}
DNN = {"name": "dnn_group", "type": "ml.g5.xlarge", "count": 1}
FEED = {"feed": {"enabled": True}, "instance_groups": ["data_group"]}


def planned(slurm: dict[str, object], *groups: dict[str, object], **fields: object) -> SlurmJob:
    given: dict[str, object] = {"source_dir": "code", "entry_point": "train.py", "instance_groups": list(groups)}
    job = Job("demo", engines={"slurm": slurm}, **{**given, **fields})  # type: ignore[arg-type]
    job.check_engine("slurm")
    return plan_slurm_job(job, (), RunPaths(Path("/shared/runs/demo")), "/shared/venv/bin/python")


CASES = {
    "one_group": planned({}, DNN, stopping_condition={"max_run": 3600}),
    "two_groups": planned(
        {
            "account": "physics",
            "qos": "normal",
            "stop_grace": 120,
            "groups": {
                "data_group": {"partition": "cpu", "constraint": "skylake&ib", "qos": "low"},
                "dnn_group": {"partition": "gpu,gpu-old", "gres": "gpu:a100:4"},
            },
        },
        DATA,
        DNN,
        data_service=FEED,
    ),
    "many_instances": planned({"partition": "all"}, {**DATA, "count": 184}, {**DNN, "count": 16}, data_service=FEED),
    "options": planned(
        {
            "exclusive": False,
            "time_margin": 0,
            "stop_grace": 0,
            "options": ["--mem=64G", "-x node7", "--reservation=new year"],
            "groups": {"dnn_group": {"options": ["--gpus-per-node=2", "--time=10"]}},
        },
        DNN,
        DATA,
        data_service=FEED,
    ),
}


@pytest.mark.promise("engines", "limits, on slurm")
@pytest.mark.promise("engines", "what it submits, on slurm")
@pytest.mark.parametrize("name", CASES)
def test_the_script_is_word_for_word_what_it_was(name: str) -> None:
    case = CASES[name]
    text = batch_script(case.job, case.plan, PLACES)
    file = GOLDEN / f"{name}.sbatch"
    if os.environ.get("HEADRACE_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_the_leaders_group_is_component_0_and_tasks_are_counted_through_the_components() -> None:
    plan = CASES["two_groups"].plan
    assert plan.leader == "algo-3"
    assert [group.name for group in components(plan)] == ["dnn_group", "data_group"]
    assert [host.name for host in hosts_by_task(plan)] == ["algo-3", "algo-1", "algo-2"]


def test_the_plan_holds_nothing_of_the_machine_that_submits_the_job() -> None:
    local = {"cpu_sets": {"dnn_group": "0-9999"}, "gpus": {"dnn_group": "7"}, "address_prefix": "127.9.9"}
    job = Job(
        "demo", source_dir="code", entry_point="train.py", instance_groups=[DNN], engines={"local": local, "slurm": {}}
    )
    plan = plan_slurm_job(job, (), RunPaths(Path("/shared/runs/demo")), "/shared/venv/bin/python").plan
    (host,) = plan.hosts
    assert (host.cpus, host.gpus, host.memory, host.cpu_weight) == ((), None, 0, 0.0)
    assert host.address == "algo-1"
    assert plan.start_timeout == 600
    assert "127.9" not in str(plan)
    assert Machine(()).cpus == ()


@pytest.mark.parametrize(
    ("slurm", "field", "words"),
    [
        ({"options": ["mem=64G"]}, "options[0]", "must be an option of sbatch"),
        ({"options": ["--nodes=3"]}, "options[0]", "--nodes is not for options"),
        ({"options": ["-N3"]}, "options[0]", "-N is not for options"),
        ({"options": ["--export=ALL"]}, "options[0]", "--export is not for options"),
        ({"options": ["--clusters=alps"]}, "options[0]", "--clusters is not for options"),
        ({"options": ["--mem=1G\n#SBATCH -N 9"]}, "options[0]", "one line"),
        ({"step_options": ["--mpi=pmix", "-n2"]}, "step_options[1]", "must be a long option of srun"),
        ({"step_options": ["--ntasks=2"]}, "step_options[0]", "--ntasks is not for step_options"),
        ({"step_options": ["--het-group=1"]}, "step_options[0]", "--het-group is not for step_options"),
        ({"cluster": "alps,jura"}, "cluster", "one cluster"),
        ({"cluster": "all"}, "cluster", "one cluster"),
        ({"partition": ""}, "partition", "1 to 256"),
        ({"partition": 3}, "partition", "must be a string"),
        ({"exclusive": "yes"}, "exclusive", "true or false"),
        ({"time_margin": -1}, "time_margin", "0 to"),
        ({"groups": {"nobody": {}}}, "groups.nobody", "nobody"),
        ({"groups": {"dnn_group": {"exclusive": True}}}, "groups.dnn_group.exclusive", "exclusive"),
    ],
)
def test_an_option_that_cannot_be_is_named_with_its_place(slurm: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        planned(slurm, DNN)
    (problem,) = caught.value.problems
    assert problem.field == f"engines.slurm.{field}"
    assert words in f"{problem.message} {problem.field}"


@pytest.mark.promise("engines", "channels, on slurm")
@pytest.mark.parametrize("mode", ["Pipe", "FastFile"])
def test_channels_that_one_kernel_serves_are_refused(mode: str) -> None:
    training = {"s3_data": "s3://bucket/prefix", "input_mode": mode}
    for fields in ({"inputs": {"training": training}}, {"input_mode": mode, "inputs": {"training": "s3://bucket/p"}}):
        with pytest.raises(JobInvalid) as caught:
            planned({}, DNN, **fields)
        (problem,) = caught.value.problems
        assert "File" in problem.hint


@pytest.mark.promise("engines", "limits, on slurm")
def test_what_has_no_effect_on_slurm_is_listed() -> None:
    job = CASES["one_group"].job.model_copy(update={"image_uri": "image", "use_spot_instances": True})
    listed = {unused.field: unused.why for unused in job.without_effect("slurm")}
    assert set(listed) == {"image_uri", "use_spot_instances"}
    assert "launcher" in listed["image_uri"]


def test_slurm_may_queue_a_job_again_only_if_it_wants_to_be_tried_again() -> None:
    for fields, word, other in (({}, "--no-requeue", "--requeue"), ({"retry": {"attempts": 2}}, "--requeue", "--no-r")):
        case = planned({}, DATA, DNN, **fields)
        text = batch_script(case.job, case.plan, PLACES)
        assert (text.count(f" {word}"), text.count(f" {other}")) == (2, 0)


def test_options_of_a_groups_step_come_after_those_of_all_groups() -> None:
    own = {"dnn_group": {"step_options": ["--container-image=/shared/gpu.sqsh"]}}
    slurm = planned({"step_options": ["--container-mounts=/shared"], "groups": own}, DATA, DNN).job.slurm
    steps = {name: slurm.nodes_of(name).step_options for name in ("data_group", "dnn_group")}
    mounts = "--container-mounts=/shared"
    assert steps == {"data_group": (mounts,), "dnn_group": (mounts, "--container-image=/shared/gpu.sqsh")}


@pytest.mark.parametrize(
    "name", ["a 0", 'a"=0"', "a'; echo foo", r"a\=0", "a\\", "%j", "100%", "#x", "$HOME", "`id`", "*", "~", "ünï"]
)
def test_sbatch_and_the_shell_read_a_folder_of_any_name_as_it_is(name: str) -> None:
    case, run = CASES["one_group"], f"/shared/{name}/demo"
    lines = batch_script(case.job, case.plan, replace(PLACES, run=run)).splitlines()
    options = [word for line in lines if line.startswith("#SBATCH ") for word in shlex.split(line)[1:]]
    (output,) = (option.partition("=")[2] for option in options if option.startswith("--output="))
    assert "%" not in output.replace("%%", "")  # nothing that Slurm would fill in
    assert output.replace("%%", "%") == f"{run}/engine/slurm.log"
    shown = subprocess.run(["bash", "-c", lines[-1].replace("exec ", r"printf '%s\n' ", 1)], stdout=-1, check=True)
    assert shown.stdout.decode().splitlines()[-1] == run


@pytest.mark.parametrize("name", ["a\nb", "a\n#SBATCH --account=other", "a\rb"])
def test_a_line_break_in_a_folder_does_not_become_a_line_of_the_script(name: str) -> None:
    case = CASES["one_group"]
    with pytest.raises(EngineRefused, match=r"a line break cannot stand in an option of sbatch: '--output=.*a\\[nr]"):
        batch_script(case.job, case.plan, replace(PLACES, run=f"/shared/{name}/demo"))

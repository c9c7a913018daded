"""The same trees, read by SageMaker's own training toolkit and by headrace: everything must agree.

The toolkit (sagemaker-training 5.1.4) has an environment of its own. Every property, every variable and every
argument is compared one by one, on every host of every tree. `DIFFERENCES` lists each difference with its reason and
with what it must look like; one that is not listed fails, and so does a listed one that no tree shows any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from oracle_cases import CASES, EVERY_TYPE, build, build_sdk_local_mode, random_hyperparameters

from headrace.instance import Environment, hyperparameter_arguments, program_variables
from headrace.instance.entry_command import decode, encode
from headrace.instance.environment import format_name, format_value
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.toolkit import SEARCH_PATH
from needs import require

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).resolve().parents[2]
ORACLE_VERSION = "5.1.4"
ORACLE_SECONDS = 100
SEED = 20240607
REFUSED = ("no_such_property", "to_cmd_args")

HOW = (
    f"the oracle is missing: run `make test`, or `python3.11 -m venv .venv-oracle && "
    f".venv-oracle/bin/pip install sagemaker-training=={ORACLE_VERSION}`, or set HEADRACE_ORACLE_PYTHON"
)


@dataclass(frozen=True)
class Seen:
    """One host of one case, as both see it. `theirs` and `ours` hold kind -> name -> value."""

    case: str
    host: str
    theirs: dict[str, dict[str, object]]
    ours: dict[str, dict[str, object]]

    def __str__(self) -> str:
        return f"{self.case}/{self.host}"


ABSENT = "(absent)"
Holds = Callable[[Seen, object, object], bool]


@dataclass(frozen=True)
class Difference:
    """A difference that is meant, and what it must look like."""

    kind: str
    name: str
    reason: str
    holds: Holds


def only_ours(expected: Callable[[Seen], object]) -> Holds:
    return lambda seen, theirs, ours: theirs == ABSENT and ours == expected(seen)


def properties(seen: Seen) -> dict[str, object]:
    return seen.ours["property"]


def variable(seen: Seen, name: str) -> object:
    return seen.ours["variable"][name]


def meeting_host(seen: Seen) -> str:
    """The first host of those that train together, else of the program's own group."""
    world, own = hosts(seen, "distribution_hosts"), hosts(seen, "current_instance_group_hosts")
    return (world if seen.host in world else own or hosts(seen, "hosts"))[0]


def training_env_with_our_properties(seen: Seen, theirs: object, ours: object) -> bool:
    """Theirs, parsed, with the listed properties replaced by ours, written again: the same string."""
    values = json.loads(str(theirs))
    values |= {each.name: properties(seen)[each.name] for each in DIFFERENCES if each.kind == "property"}
    return json.dumps(values, sort_keys=True, separators=(",", ":")) == ours


RANK_ORDER = "their order is that of the file; ranks follow the order in which the distribution names its groups"
OWN_CPUS = "they count the machine's CPUs; a host of the local engine may own some of them only"
HETERO_MASTER = "theirs exists on the Python object only; a program needs it as a variable"
SDK3 = "set by version 3 of the SDK instead of the toolkit; harmless beside its names"
PYTORCH = (
    "set by the service's PyTorch containers instead of the toolkit, so that programs can make a world of their own"
)
GETTER = "undocumented method behind a property; the property is there"

DIFFERENCES = (
    Difference("property", "num_cpus", OWN_CPUS, lambda seen, theirs, ours: theirs == os.cpu_count() and ours == 1),
    Difference(
        "property",
        "is_modelparallel_enabled",
        "theirs is None where the answer is no; a question has the answers True and False",
        lambda seen, theirs, ours: theirs is None and ours is False,
    ),
    Difference(
        "property",
        "distribution_hosts",
        RANK_ORDER,
        lambda seen, theirs, ours: theirs == ["algo-1", "algo-3", "algo-4"] and ours == ["algo-3", "algo-4", "algo-1"],
    ),
    Difference(
        "property", "master_hostname", RANK_ORDER, lambda seen, theirs, ours: (theirs, ours) == ("algo-1", "algo-3")
    ),
    Difference(
        "property",
        "is_master",
        RANK_ORDER,
        lambda seen, theirs, ours: theirs is not ours and ours is (seen.host == "algo-3"),
    ),
    Difference(
        "variable", "SM_NUM_CPUS", OWN_CPUS, lambda seen, theirs, ours: theirs == str(os.cpu_count()) and ours == "1"
    ),
    Difference(
        "variable",
        "SM_TRAINING_ENV",
        "holds all properties, so it has their differences and no other",
        training_env_with_our_properties,
    ),
    Difference(
        "variable",
        "PYTHONPATH",
        "theirs is the whole sys.path of the toolkit's interpreter; ours is the code directory, what is inherited, and "
        "headrace's stand-in for the toolkit",
        lambda seen, theirs, ours: str(ours).split(":") == [str(theirs).split(":")[0], SEARCH_PATH],
    ),
    Difference(
        "variable",
        "SAGEMAKER_JOB_NAME",
        "theirs is the reserved hyperparameter, which a local-mode tree lacks; ours falls back to TRAINING_JOB_NAME",
        lambda seen, theirs, ours: seen.case == "sdk-local-mode" and (theirs, ours) == ("", "the-job"),
    ),
    Difference(
        "variable",
        "PYTHONUNBUFFERED",
        "the output of a program must reach the run when it is written",
        only_ours(lambda seen: "1"),
    ),
    Difference(
        "variable",
        "SM_DISTRIBUTION_HOSTS",
        HETERO_MASTER,
        only_ours(lambda seen: json.dumps(properties(seen)["distribution_hosts"], separators=(",", ":"))),
    ),
    Difference(
        "variable",
        "SM_MASTER_ADDR",
        HETERO_MASTER,
        only_ours(lambda seen: str(properties(seen)["master_hostname"]).replace("algo-", "127.0.1.")),
    ),
    Difference(
        "variable",
        "SM_MASTER_PORT",
        f"{HETERO_MASTER}; the second world of a job has the next port",
        only_ours(lambda seen: "7800" if properties(seen)["current_instance_group"] == "horovod" else "7799"),
    ),
    Difference(
        "variable", "MASTER_ADDR", PYTORCH, only_ours(lambda seen: meeting_host(seen).replace("algo-", "127.0.1."))
    ),
    Difference("variable", "MASTER_PORT", PYTORCH, only_ours(lambda seen: variable(seen, "SM_MASTER_PORT"))),
    Difference(
        "variable",
        "PATH",
        "the programs beside the job's interpreter come first, so that `python` in a script is that one",
        lambda seen, theirs, ours: ours == f"{Path(sys.executable).parent}:{theirs}",
    ),
    Difference(
        "variable",
        "SM_CURRENT_HOST_RANK",
        "the toolkit has no rank of a host; version 3 of the SDK counts all hosts, here the distribution's are counted",
        only_ours(lambda seen: str(peers(seen).index(seen.host))),
    ),
    Difference("variable", "SM_HOST_COUNT", SDK3, only_ours(lambda seen: str(len(hosts(seen, "hosts"))))),
    Difference("variable", "SM_INPUT_DATA_DIR", SDK3, only_ours(lambda seen: f"{properties(seen)['input_dir']}/data")),
    Difference(
        "variable", "SM_OUTPUT_FAILURE", SDK3, only_ours(lambda seen: f"{properties(seen)['output_dir']}/failure")
    ),
    Difference("variable", "SM_SOURCE_DIR", SDK3, only_ours(lambda seen: properties(seen)["module_dir"])),
    Difference("variable", "SM_ENTRY_SCRIPT", SDK3, only_ours(lambda seen: "train.py")),
    Difference(
        "variable",
        "SM_HP_BATCH_SIZE",
        "theirs is only SM_HP_BATCH-SIZE, which a shell cannot read; version 3 of the SDK writes underscores",
        only_ours(lambda seen: variable(seen, "SM_HP_BATCH-SIZE")),
    ),
    Difference(
        "variable",
        "SM_HP_TEXT_NUMBER",
        "as SM_HP_BATCH_SIZE",
        only_ours(lambda seen: variable(seen, "SM_HP_TEXT-NUMBER")),
    ),
    Difference(
        "behaviour",
        "env['no_such_property']",
        "a mapping answers with KeyError; theirs breaks `name in env` and `env.get(name)`",
        lambda seen, theirs, ours: (theirs, ours) == ("AttributeError", "KeyError"),
    ),
    *(
        Difference("public", name, GETTER, lambda seen, theirs, ours: ours == ABSENT)
        for name in (
            "get_current_instance_group",
            "get_current_instance_group_hosts",
            "get_distribution_hosts",
            "get_distribution_instance_groups_from_resource_config",
            "get_instance_groups",
            "get_instance_groups_dict",
            "get_master_hostname",
        )
    ),
    Difference(
        "public", "channel", "a channel's directory, or an error that names the channels", only_ours(lambda seen: True)
    ),
    Difference("variable", "AWS_REGION", "the platform sets it, not the toolkit", only_ours(lambda seen: "eu-west-1")),
    Difference("public", "paths", "paths that have no property", only_ours(lambda seen: True)),
    Difference("public", "region", "theirs is only in SAGEMAKER_REGION", only_ours(lambda seen: True)),
    Difference("public", "tf_data_service", "where the job's tf.data.service is", only_ours(lambda seen: True)),
)


def hosts(seen: Seen, name: str) -> list[str]:
    value = properties(seen)[name]
    assert isinstance(value, list)
    return value


def peers(seen: Seen) -> list[str]:
    distribution = hosts(seen, "distribution_hosts")
    return distribution if seen.host in distribution else hosts(seen, "hosts")


@pytest.fixture(scope="module")
def oracle_python() -> str:
    python = os.environ.get("HEADRACE_ORACLE_PYTHON") or str(ROOT / ".venv-oracle" / "bin" / "python")
    require("oracle")
    return python


@pytest.fixture(scope="module")
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def inherited(home: Path) -> dict[str, str]:
    """The variables that the platform gives a program, before anybody adds to them."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "TRAINING_JOB_NAME": "the-job",
        "USER_VARIABLE": "from the job file",
    }


def ours_on(base: Path, plan: LaunchPlan, variables: dict[str, str]) -> dict[str, dict[str, object]]:
    environ = variables | {"SAGEMAKER_BASE_DIR": str(base)}
    env = Environment(environ=environ)
    arguments = env.to_cmd_args()
    return {
        "property": json.loads(json.dumps(dict(env))),
        "variable": environ | program_variables(env, plan, inherited=environ),
        "argument": dict(enumerate_arguments(arguments)),
        "public": dict.fromkeys((name for name in dir(env) if not name.startswith("_")), True),
        "behaviour": {
            "iteration": list(env),
            "length": len(env),
            "s3_output": env.sagemaker_s3_output(),
            **{f"env[{name!r}]": refusal(env, name) for name in REFUSED},
        },
    }


def refusal(env: Environment, name: str) -> str:
    with pytest.raises(LookupError) as caught:
        env[name]
    return caught.type.__name__


def theirs_on(answer: dict[str, object]) -> dict[str, dict[str, object]]:
    return {
        "property": answer["properties"],
        "variable": answer["variables"],
        "argument": dict(enumerate_arguments(answer["arguments"])),
        "public": dict.fromkeys(answer["public"], True),
        "behaviour": {
            **{name: answer[name] for name in ("iteration", "length", "s3_output")},
            **{f"env[{name!r}]": answer["refused"][name] for name in REFUSED},
        },
    }


def enumerate_arguments(arguments: list[str]) -> Iterator[tuple[str, str]]:
    for index, argument in enumerate(arguments):
        yield f"argv[{index}]", argument


@dataclass(frozen=True)
class Dialect:
    content: dict[str, object]  # of a hyperparameters.json
    theirs: dict[str, object]


@dataclass(frozen=True)
class Answers:
    hosts: list[Seen]
    dialect: list[Dialect]


@pytest.fixture(scope="module")
def answers(oracle_python: str, one_cpu: None, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    data = tmp_path_factory.mktemp("data")
    (data / "directory").mkdir()
    (data / "code").mkdir()
    (data / "code" / "train.py").write_text("")
    trees: dict[str, tuple[str, str, LaunchPlan]] = {}
    for case in CASES:
        for host in case.hosts:
            base = tmp_path_factory.mktemp("trees") / "opt" / "ml"
            trees[str(base)] = (case.name, host, build(case, host, base, data))
    local_mode = tmp_path_factory.mktemp("trees")
    trees[str(local_mode)] = ("sdk-local-mode", "algo-1", build_sdk_local_mode(local_mode))

    drawn = random_hyperparameters(SEED, 300)
    contents = [*map(encode, drawn), *({name: str(value) for name, value in each.items()} for each in drawn)]
    variables = inherited(data)
    done = subprocess.run(
        [oracle_python, str(Path(__file__).with_name("oracle_reader.py"))],
        input=json.dumps({"bases": list(trees), "hyperparameters": contents}),
        env=variables,
        capture_output=True,
        text=True,
        timeout=ORACLE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["version"] == ORACLE_VERSION
    return Answers(
        [
            Seen(case, host, theirs_on(answer["trees"][base]), ours_on(Path(base), plan, variables))
            for base, (case, host, plan) in trees.items()
        ],
        [Dialect(content, theirs) for content, theirs in zip(contents, answer["dialect"], strict=True)],
    )


def differences(seen: Seen) -> Iterator[tuple[str, str, object, object]]:
    for kind, theirs in seen.theirs.items():
        ours = seen.ours[kind]
        for name in sorted(theirs.keys() | ours.keys()):
            pair = theirs.get(name, ABSENT), ours.get(name, ABSENT)
            if not same(*pair):
                yield kind, name, *pair


def same(theirs: object, ours: object) -> bool:
    """Equal in type too (1 is not True), and NaN equals NaN."""
    return type(theirs) is type(ours) and json.dumps(theirs, sort_keys=True) == json.dumps(ours, sort_keys=True)


LISTED = {(each.kind, each.name): each for each in DIFFERENCES}


def test_every_property_variable_and_argument_is_the_toolkits_or_a_listed_difference(answers: Answers) -> None:
    wrong = []
    for seen in answers.hosts:
        for kind, name, theirs, ours in differences(seen):
            listed = LISTED.get((kind, name))
            if listed is None or not listed.holds(seen, theirs, ours):
                word = "not listed" if listed is None else "not as listed"
                wrong.append(f"{seen}: {kind} {name} ({word})\n  toolkit:  {theirs!r}\n  headrace: {ours!r}")
    assert not wrong, "\n".join(wrong)


def test_every_listed_difference_exists(answers: Answers) -> None:
    found = {(kind, name) for seen in answers.hosts for kind, name, _, _ in differences(seen)}
    if os.cpu_count() == 1:
        found |= {("property", "num_cpus"), ("variable", "SM_NUM_CPUS")}
    missing = LISTED.keys() - found
    assert not missing


def test_the_comparison_covers_what_it_claims_to(answers: Answers) -> None:
    homogeneous = next(seen for seen in answers.hosts if seen.case == "homogeneous")
    assert len(answers.hosts) == sum(len(case.hosts) for case in CASES) + 1
    assert len(homogeneous.theirs["property"]) == 37
    assert len(homogeneous.theirs["argument"]) == 2 * (len(EVERY_TYPE) - 2)  # two are reserved names
    named = {name for name in homogeneous.theirs["variable"] if name.startswith("SM_")}
    assert len(named) == 31 + len(EVERY_TYPE) - 2


def test_random_hyperparameters_are_decoded_formatted_and_passed_as_the_toolkit_does(answers: Answers) -> None:
    print(f"seed {SEED}")
    for each in answers.dialect:
        decoded = decode(each.content)
        assert same(each.theirs["decoded"], decoded), each.content
        assert hyperparameter_arguments(decoded) == each.theirs["arguments"], each.content
        variables = {format_name(f"hp_{name}"): format_value(value) for name, value in decoded.items()}
        assert variables == each.theirs["variables"], each.content


def test_the_toolkit_finds_its_own_launcher_for_every_kind_of_distribution(answers: Answers) -> None:
    """The flags, as SageMaker's containers look for them, and the groups, are on the hosts of each world."""
    flags = {
        "homogeneous-distribution": {"sagemaker_torch_distributed_enabled": True},
        "mpi": {
            "sagemaker_mpi_enabled": True,
            "sagemaker_mpi_num_of_processes_per_host": 8,
            "sagemaker_mpi_custom_mpi_options": "--NCCL_DEBUG INFO -verbose",
        },
        "multi-worker-mirrored": {"sagemaker_multi_worker_mirrored_strategy_enabled": True},
    }
    seen = {each.case: each.theirs["property"] for each in answers.hosts if each.host == "algo-2"}
    for case, expected in flags.items():
        groups = {"sagemaker_distribution_instance_groups": seen[case]["distribution_instance_groups"]}
        assert seen[case]["additional_framework_parameters"] == expected | groups
    by_host = {each.host: each.theirs["property"] for each in answers.hosts if each.case == "several-distributions"}
    for host, groups, master in (("algo-2", ["torch"], "algo-1"), ("algo-4", ["horovod"], "algo-3")):
        assert by_host[host]["distribution_instance_groups"] == groups
        assert by_host[host]["master_hostname"] == master
    assert by_host["algo-5"]["distribution_instance_groups"] == ["torch", "horovod"]
    over_two = {each.host: each.theirs["property"] for each in answers.hosts if each.case == "horovod-over-two-groups"}
    assert over_two["algo-4"]["distribution_hosts"] == ["algo-1", "algo-2", "algo-3"]
    processes = "sagemaker_mpi_num_of_processes_per_host"
    assert [over_two[host]["additional_framework_parameters"][processes] for host in sorted(over_two)] == [2, 2, 1, 2]

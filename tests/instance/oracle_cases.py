"""The trees and hyperparameters that the oracle and headrace both read."""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass, field
from pathlib import Path

from headrace.instance import Channel, build_tree
from headrace.instance.launch_plan import (
    MPI,
    MULTI_WORKER_MIRRORED,
    TORCH_DISTRIBUTED,
    DistributionPlan,
    GroupPlan,
    HostPlan,
    LaunchPlan,
    Ports,
)


@dataclass(frozen=True)
class Case:
    """A job whose hosts are read by both."""

    name: str
    groups: tuple[GroupPlan, ...]
    hyperparameters: dict[str, object] = field(default_factory=dict)
    channels: dict[str, tuple[str, ...]] = field(default_factory=dict)  # channel -> groups that have it
    distribution: tuple[str, ...] = ()  # groups of one torch.distributed world
    worlds: tuple[DistributionPlan, ...] = ()  # or any others
    region: str = ""

    @property
    def distributions(self) -> tuple[DistributionPlan, ...]:
        return (DistributionPlan(TORCH_DISTRIBUTED, self.distribution),) if self.distribution else self.worlds

    @property
    def hosts(self) -> list[str]:
        return sorted((host for group in self.groups for host in group.hosts), key=lambda name: int(name[5:]))


def group(name: str, instance_type: str, *numbers: int, processes: int = 1) -> GroupPlan:
    return GroupPlan(name, instance_type, tuple(f"algo-{number}" for number in numbers), processes_per_host=processes)


EVERY_TYPE: dict[str, object] = {
    "epochs": 10,
    "lr": 1e-05,
    "k": 5,
    "momentum": 0.9,
    "name": "a b; echo INJECTED",
    "quoted": "say \"hi\" and 'bye' $HOME `id` \\ ",
    "newline": "a\nb",
    "text-number": "10",
    "text_true": "true",
    "empty": "",
    "unicode": "größe 日本 🙂",
    "cased": True,
    "off": False,
    "nothing": None,
    "batch-size": 64,
    "list": [1, 2.5, "x", None, True, {"a": 1}],
    "mapping": {"b": 2, "a": [1], "c": None, "d": {"e": "f g"}},
    "empty_list": [],
    "empty_mapping": {},
    "nan": float("nan"),
    "infinity": float("inf"),
    "large": 2**80,
    "_private": 1,
    "SageMaker_not_reserved": 2,
    "_tuning_objective_metric": "accuracy",
    "default_user_module_name": "x",
}

CASES = (
    Case("homogeneous", (group("homogeneousCluster", "ml.c5.xlarge", 1, 2),), EVERY_TYPE),
    Case(
        "homogeneous-distribution",
        (group("homogeneousCluster", "ml.g5.xlarge", 1, 2),),
        {"epochs": 3},
        {"training": ("homogeneousCluster",), "test-set.v2": ("homogeneousCluster",)},
        ("homogeneousCluster",),
        region="eu-west-1",
    ),
    Case(
        "two-groups",
        (group("data_group", "ml.c5.xlarge", 1, 2), group("dnn_group", "ml.g5.xlarge", 3)),
        EVERY_TYPE,
        {"training": ("data_group", "dnn_group"), "labels": ("dnn_group",)},
        ("dnn_group",),
    ),
    Case(
        "one-named-group",
        (group("only one", "ml.m5.xlarge", 1),),
        {"sagemaker_container_log_level": 10, "sagemaker_s3_output": "s3://bucket/key", "mp_parameters": {"a": 1}},
    ),
    Case(
        "three-groups-shuffled-hosts",
        (
            group("data/1 ü", "ml.c5.xlarge", 11, 1, 3),
            group("cache", "ml.r5.large", 2, 4, 5, 6, 7),
            group("dnn", "ml.g5.xlarge", 9, 8, 10),
        ),
        {"sagemaker_own_parameter": [1, 2]},
        {"training": ("dnn",)},
    ),
    Case(
        "distribution-out-of-order",
        (
            group("first", "ml.c5.xlarge", 1),
            group("second", "ml.c5.xlarge", 2),
            group("third", "ml.c5.xlarge", 3, 4),
        ),
        distribution=("third", "first"),
    ),
    Case(
        "flag-without-groups",
        (group("a", "ml.c5.xlarge", 1), group("b", "ml.c5.xlarge", 2)),
        {"sagemaker_mpi_enabled": True},
    ),
    Case(
        "mpi",
        (group("data_group", "ml.c5.xlarge", 1), group("dnn_group", "ml.p4d.24xlarge", 3, 2, processes=8)),
        {"epochs": 3},
        worlds=(DistributionPlan(MPI, ("dnn_group",), ("--NCCL_DEBUG", "INFO", "-verbose")),),
    ),
    Case(
        "horovod-over-two-groups",
        (group("a", "ml.g5.xlarge", 1, 2, processes=2), group("b", "ml.g5.xlarge", 3), group("c", "ml.c5.xlarge", 4)),
        worlds=(DistributionPlan(MPI, ("a", "b"), horovod=True),),
    ),
    Case(
        "multi-worker-mirrored",
        (group("data_group", "ml.c5.xlarge", 1), group("dnn_group", "ml.g5.xlarge", 2, 3)),
        worlds=(DistributionPlan(MULTI_WORKER_MIRRORED, ("dnn_group",)),),
    ),
    Case(
        "several-distributions",
        (
            group("torch", "ml.g5.xlarge", 1, 2),
            group("horovod", "ml.g5.xlarge", 3, 4),
            group("side", "ml.c5.xlarge", 5),
        ),
        worlds=(DistributionPlan(TORCH_DISTRIBUTED, ("torch",)), DistributionPlan(MPI, ("horovod",))),
    ),
)


def build(case: Case, host: str, base: Path, data: Path) -> LaunchPlan:
    own = next(each.name for each in case.groups if host in each.hosts)
    build_tree(
        base,
        current_host=host,
        groups=case.groups,
        code=data / "code",
        job_name="the-job",
        entry_point="train.py",
        hyperparameters=case.hyperparameters,
        channels={
            name: Channel(data / "directory", content_type="text/csv" if name == "labels" else None)
            for name, groups in case.channels.items()
            if own in groups
        },
        distributions=case.distributions,
        region=case.region,
    )
    return launch_plan(case.groups, case.hosts, case.distributions)


def launch_plan(groups: tuple[GroupPlan, ...], hosts: list[str], worlds: tuple[DistributionPlan, ...]) -> LaunchPlan:
    group_of = {host: each.name for each in groups for host in each.hosts}
    return LaunchPlan(
        job_name="the-job",
        run_id="the-job-run",
        entry_point="train.py",
        groups=groups,
        hosts=tuple(
            HostPlan(host, group_of[host], host.replace("algo-", "127.0.1."), "/base", "/record", cpus=(0,))
            for host in hosts
        ),
        leader=hosts[0],
        distributions=worlds,
        environment={"USER_VARIABLE": "from the job file"},
        ports=Ports(master=7799),
    )


def build_sdk_local_mode(base: Path) -> LaunchPlan:
    """A tree as version 2 of the SDK writes it in local mode: no groups, and values that are not all JSON."""
    (base / "input" / "config").mkdir(parents=True)
    (base / "code").mkdir()
    contents = {
        "resourceconfig": {
            "current_host": "algo-1",
            "hosts": ["algo-1", "algo-2"],
            "network_interface_name": "eth0",
            "current_instance_type": "local",
        },
        "inputdataconfig": {"validation": {"TrainingInputMode": "File"}, "training": {"TrainingInputMode": "File"}},
        "hyperparameters": {"sagemaker_program": "train.py", "plain": "not json", "epochs": "10", "raw": 3},
    }
    for name, content in contents.items():
        (base / "input" / "config" / f"{name}.json").write_text(json.dumps(content))
    return launch_plan((group("homogeneousCluster", "local", 1, 2),), ["algo-1", "algo-2"], ())


def random_hyperparameters(seed: int, count: int) -> list[dict[str, object]]:
    generator = random.Random(seed)
    letters = string.ascii_letters + string.digits + "-_. =,:;'\"\\$`|&<>\n\té日🙂"

    def text(longest: int) -> str:
        return "".join(generator.choices(letters, k=generator.randint(0, longest)))

    def value(depth: int) -> object:
        kind = generator.randrange(8 if depth else 6)
        simple: tuple[object, ...] = (
            None,
            generator.random() < 0.5,
            generator.randint(-(10**20), 10**20),
            generator.uniform(-1e9, 1e9),
            text(20),
            generator.choice(["1", "true", "null", "[1]", '{"a": 1}', '"x"', "NaN", "1e5", " 7 ", "01"]),
        )
        if kind == 6:
            return [value(depth - 1) for _ in range(generator.randint(0, 3))]
        if kind == 7:
            return {text(5): value(depth - 1) for _ in range(generator.randint(0, 3))}
        return simple[kind]

    return [{text(8) or "x": value(3) for _ in range(generator.randint(1, 8))} for _ in range(count)]

"""A small job and a way to build its trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.instance import Channel, Environment, build_tree
from headrace.instance.launch_plan import TORCH_DISTRIBUTED, DistributionPlan, GroupPlan, HostPlan, LaunchPlan, Ports

GROUPS = (
    GroupPlan("data_group", "ml.c5.xlarge", ("algo-1", "algo-2")),
    GroupPlan("dnn_group", "ml.m5.xlarge", ("algo-3", "algo-4"), processes_per_host=2),
)


WORLD = (DistributionPlan(TORCH_DISTRIBUTED, ("dnn_group",)),)


@dataclass(frozen=True)
class Job:
    """Builds trees of one job below `root`."""

    root: Path

    def tree(self, host: str, **changes: object) -> Path:
        """Builds the tree of a host; `changes` replace arguments of build_tree."""
        code = self.root / "code"
        code.mkdir(exist_ok=True)
        arguments: dict[str, object] = {
            "current_host": host,
            "groups": GROUPS,
            "code": code,
            "job_name": "the-job",
            "entry_point": "train.py",
            "hyperparameters": {"epochs": 3},
            "distributions": WORLD,
        }
        base = self.root / host
        build_tree(base, **arguments | changes)
        return base

    def environment(self, host: str, **changes: object) -> Environment:
        """The Environment of a host, with no variables around it."""
        return Environment(self.tree(host, **changes), environ={})

    def channel(self, name: str, **attributes: str) -> Channel:
        """A channel with one file."""
        directory = self.root / "data" / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "part-0").write_text(name)
        return Channel(directory, **attributes)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture
def make_plan() -> Callable[..., LaunchPlan]:
    """Makes the launch plan of that job; keyword arguments replace its fields, `world` the distribution's groups."""

    def make(**changes: object) -> LaunchPlan:
        groups = changes.get("groups", GROUPS)
        world = changes.pop("world", ("dnn_group",))
        fields: dict[str, object] = {
            "job_name": "the-job",
            "run_id": "the-job-20240607T000000Z-abcd",
            "entry_point": "train.py",
            "groups": groups,
            "hosts": tuple(
                HostPlan(host, group.name, host.replace("algo-", "127.0.1."), f"/hosts/{host}", "/record")
                for group in groups
                for host in group.hosts
            ),
            "leader": "algo-3",
            "distributions": (DistributionPlan(TORCH_DISTRIBUTED, world),) if world else (),
            "ports": Ports(master=7799),
        }
        return LaunchPlan(**fields | changes)

    return make

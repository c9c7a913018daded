"""Launch plans for tests."""

from pathlib import Path

from headrace.instance.launch_plan import TORCH_DISTRIBUTED, DistributionPlan, GroupPlan, HostPlan, LaunchPlan, Ports


def make_plan(*groups: GroupPlan, base: Path = Path("/nowhere"), prefix: str = "127.78.1", **fields) -> LaunchPlan:
    """A plan whose hosts are those of the groups, in order. `world` names the groups of a torch.distributed world."""
    if "world" in fields:
        fields["distributions"] = (DistributionPlan(TORCH_DISTRIBUTED, fields.pop("world")),)
    hosts = tuple(
        HostPlan(name, group.name, f"{prefix}.{name.rpartition('-')[2]}", str(base / name), str(base))
        for group in groups
        for name in group.hosts
    )
    fields.setdefault("completion_groups", tuple(group.name for group in groups if group.entry_point))
    first = fields["completion_groups"][0]
    leader = next(group.hosts[0] for group in groups if group.name == first)
    return LaunchPlan("job", "job-1", "train.py", groups, hosts, leader, **fields)


def scripts(name: str, *hosts: str, feed: int = 0) -> GroupPlan:
    return GroupPlan(name, "ml.c5.xlarge", hosts, feed_executors=feed)


def ranks(name: str, *hosts: str, count: int = 2, feed: int = 0) -> GroupPlan:
    return GroupPlan(name, "ml.p3.2xlarge", hosts, processes_per_host=count, feed_executors=feed)


def workers(name: str, *hosts: str, feed: int = 2) -> GroupPlan:
    return GroupPlan(name, "ml.c5.xlarge", hosts, entry_point=False, feed_executors=feed)


__all__ = ["Ports", "make_plan", "ranks", "scripts", "workers"]

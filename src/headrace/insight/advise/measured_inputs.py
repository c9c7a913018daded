"""What a run tells the model, as values; `headrace.insight.advise.calibrate` reads them from its metrics."""

from __future__ import annotations

import msgspec

from headrace.errors import UsageError
from headrace.insight.figures.figure import Window
from headrace.insight.figures.planned_job import PlannedGroup
from headrace.insight.performance_model import Range, Workload


class GroupFacts(msgspec.Struct, frozen=True):
    """One instance group, as the plan and the metrics have it.

    Attributes:
        name: of the group.
        instance_type: e.g. ``ml.c5.xlarge``.
        hosts: how many.
        trains: its hosts run the ranks.
        executors: data workers a host, as planned; 0 without a feed server.
        cores: CPUs that each host may use.
        busy: share of them that was busy, 0 to 1; None if it was not measured.
        cpu: CPU seconds of a sample in its workers; None when they made nothing.
        pause: seconds that a worker spends on a sample without needing a core.
        bandwidth: bytes a second that the network of each host carries, each way: as measured where it was busy, else
            as the job limits it; None for that of the type, as published.
    """

    name: str
    instance_type: str
    hosts: int
    trains: bool
    executors: int
    cores: int
    busy: float | None = None
    cpu: Range | None = None
    pause: Range | None = None
    bandwidth: float | None = None


class Measured(msgspec.Struct, frozen=True):
    """What the run says, and what has to be assumed.

    Attributes:
        workload: what a step costs.
        step: the measured step, seconds, with the 10th and 90th percentile of its per-second values.
        wait: share of it that ranks waited, 0 to 1.
        steps, samples: from when all data workers were ready, to the end.
        window: where this was measured.
        groups: the hosts that train, and those that make samples.
        ranks_per_host: training processes on each host that trains.
        others: groups that do neither; they stay, and cost money.
        workers_told: whether data workers have told what they did; else `assumptions` say what was assumed of them.
        blurred: the ranks' hosts are busy with computing and with making samples, and the two are not told apart:
            what is no wait need not be computing.
        link_unsure: a link was full, and nothing tells whether it was the data hosts' or the trainer's.
        assumptions: sentences.
    """

    workload: Workload
    step: Range
    wait: float
    steps: int
    samples: int
    window: Window
    groups: tuple[GroupFacts, ...]
    workers_told: bool
    ranks_per_host: float = 1.0
    others: tuple[PlannedGroup, ...] = ()
    blurred: bool = False
    link_unsure: bool = False
    assumptions: tuple[str, ...] = ()

    @property
    def instance_types(self) -> tuple[str, ...]:
        """The types of all hosts, each once."""
        own = [group.instance_type for group in self.groups]
        return tuple(dict.fromkeys([*own, *(group.instance_type for group in self.others)]))

    @property
    def trainer(self) -> GroupFacts:
        """The group whose hosts train."""
        return next(group for group in self.groups if group.trains)

    @property
    def helpers(self) -> tuple[GroupFacts, ...]:
        """The groups that only make samples."""
        return tuple(group for group in self.groups if not group.trains)


def not_enough(what: str) -> UsageError:
    """Returns the error of a run that does not tell what the model needs."""
    return UsageError(
        f"the run cannot be advised: {what}",
        hint="train for at least 5 seconds with headrace.feed.DataLoader, or wrap the loader in headrace.track",
    )

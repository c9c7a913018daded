"""What every part of one host's agent uses: the plan, the host's identity, its record, its reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from headrace.agent.control.control_messages import Message
from headrace.agent.host.oom_kills import MemoryKills
from headrace.agent.host.program_environment import HostVariables
from headrace.agent.metrics.activity import Activity
from headrace.instance.launch_plan import HostPlan, LaunchPlan
from headrace.runs import EventWriter, RunPaths, Stream


@dataclass(frozen=True)
class HostContext:
    """See the module.

    Attributes:
        plan: the launch plan.
        host: name of this host.
        secret: the job's secret.
        paths: the run's directory, as this host sees it.
        events: the host's event file.
        variables: the environment of the host's programs.
        report: takes reports for the coordinator.
        memory: knows which processes the kernel killed for memory.
        activity: when the host last worked.
    """

    plan: LaunchPlan
    host: str
    secret: bytes
    paths: RunPaths
    events: EventWriter
    variables: HostVariables
    report: Callable[[Message], None]
    memory: MemoryKills
    activity: Activity = field(default_factory=Activity)

    @cached_property
    def me(self) -> HostPlan:
        """This host in the plan."""
        return self.plan.host(self.host)

    def stream(self, name: str) -> Stream:
        """Returns the stream of one of the host's programs, or of what the agent itself writes."""
        return Stream(self.me.group, self.host, name)

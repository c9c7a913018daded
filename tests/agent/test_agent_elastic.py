"""What an agent keeps of the ranks that torchrun starts, generation after generation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headrace.agent.control.control_messages import Exited
from headrace.agent.launchers.elastic_torchrun import ElasticHost
from headrace.instance.launch_plan import DistributionPlan, Elastic, GroupPlan, HostPlan, LaunchPlan
from headrace.runs import Cause, CauseKind


class Programs:
    """Stands for the host's programs: none is started, and the test says when one ends."""

    def __init__(self) -> None:
        self.running: dict[str, SimpleNamespace] = {}

    def variables_of(self, spec: object) -> dict[str, str]:
        return {}

    def argv_of(self, spec: object) -> list[str]:
        return []

    def report_exit(self, running: SimpleNamespace) -> None:
        pass

    def launch(
        self, stream: str, argv: object, env: object, cpus: object, on_end: Callable[[object], None], report: bool
    ) -> SimpleNamespace:
        made = SimpleNamespace(
            stream=stream,
            ended=asyncio.Event(),
            exit_code=None,
            signal=None,
            told_to_stop=False,
            cause=None,
            tail=[],
            pid=1,
            on_end=on_end,
        )
        made.kill = lambda: self.end(stream, 9)
        self.running[stream] = made
        return made

    def end(self, stream: str, code: int, cause: Cause | None = None) -> None:
        running = self.running[stream]
        running.exit_code, running.cause = code, cause
        running.ended.set()
        running.on_end(running)


class Torchrun:
    """Starts ranks as torchrun does, on an agent without processes."""

    def __init__(self) -> None:
        plan = LaunchPlan(
            job_name="j",
            run_id="j-1",
            entry_point="t.py",
            groups=(GroupPlan("dnn", "ml.c5.xlarge", ("algo-1",), processes_per_host=2),),
            hosts=(HostPlan("algo-1", "dnn", "127.0.0.1", "/b", "/r"),),
            leader="algo-1",
            distributions=(DistributionPlan("torch_distributed", ("dnn",), elastic=Elastic(1, 3)),),
        )
        self.programs = Programs()
        self.reported: list[Exited] = []
        context = SimpleNamespace(plan=plan, host="algo-1", me=plan.hosts[0], secret=b"", report=self.reported.append)
        self.host = ElasticHost(context, self.programs)  # type: ignore[arg-type]
        self.host.start_torchrun()

    def rank(self, number: int, restarts: int, world: int = 2) -> None:
        seen = {"RANK": str(number), "TORCHELASTIC_RESTART_COUNT": str(restarts), "WORLD_SIZE": str(world)}
        caller = SimpleNamespace(answer=lambda *_: None)
        self.host._serve({"kind": "rank", "runner": [], "variables": seen}, caller)  # type: ignore[arg-type]

    def failures(self) -> list[tuple[str, int | None]]:
        self.programs.end("torchrun", 1)
        return [(each.stream, each.exit_code) for each in self.reported]


@pytest.fixture
def torchrun():
    async def make() -> Torchrun:
        made = Torchrun()
        await made.host.ranks.close()
        return made

    return asyncio.run(make())


def test_a_rank_that_failed_before_the_next_one_was_there_is_still_the_cause(torchrun: Torchrun) -> None:
    torchrun.rank(1, restarts=0)
    torchrun.programs.end("1", 7)
    torchrun.rank(0, restarts=0)
    torchrun.programs.end("0", 0)
    assert torchrun.failures() == [("1", 7)]


@pytest.mark.parametrize(("restarts", "world"), [(1, 2), (0, 4)])
def test_failures_of_ranks_that_were_started_again_are_forgotten(torchrun: Torchrun, restarts: int, world: int) -> None:
    for number in (0, 1):
        torchrun.rank(number, restarts=0)
    torchrun.programs.end("0", 5)
    torchrun.programs.end("1", 7)
    torchrun.rank(3, restarts, world)
    torchrun.programs.end("3", 8)
    assert torchrun.failures() == [("3", 8)]


def test_a_rank_that_the_kernel_killed_for_memory_says_so(torchrun: Torchrun) -> None:
    torchrun.rank(0, restarts=0)
    torchrun.programs.end("0", -9, Cause(CauseKind.OUT_OF_MEMORY, "the machine has none left"))
    torchrun.failures()
    assert [each.cause.kind for each in torchrun.reported] == [CauseKind.OUT_OF_MEMORY]

"""A job for hosts that a platform gives, and the engine of docs/own-engine.md, on a fake platform that runs nothing."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from types import ModuleType

import pytest
from stage import Stage, groups

from headrace import engines
from headrace.errors import JobInvalid
from headrace.job import Job
from headrace.runs import CauseKind, EventWriter, Run, Status
from headrace.runs.events import JobFinished

PAGE = Path(__file__).parents[2] / "docs" / "own-engine.md"


class Platform(ModuleType):
    """What the page leaves to its reader."""

    def __init__(self) -> None:
        super().__init__("my_platform")
        self.state = "queued"
        self.asked: list[object] = []
        self.trees: dict[str, str] = {}
        self.queue = ""

    def address_of(self, host: str) -> str:
        return f"{host}.cluster"

    def submit(self, name: str, trees: dict[str, str], queue: str) -> int:
        self.trees, self.queue = trees, queue
        return 7

    def look(self, job: object) -> str:
        assert job == 7
        return self.state

    def cancel(self, run_id: str) -> None:
        self.asked.append(run_id)

    def describe(self, run_id: str) -> str:
        return f"{run_id} is {self.state}"

    def run_on_leader(self, run_id: str, words: list[str]) -> None:
        self.asked.append(words)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    """The engine of the page, installed as `mine`."""
    platform, engine = Platform(), ModuleType("engine")
    monkeypatch.setitem(sys.modules, "my_platform", platform)
    (code,) = (part.partition("```")[0] for part in PAGE.read_text().split("```python\n")[1:])
    exec(compile(code, str(PAGE), "exec"), engine.__dict__)
    monkeypatch.setattr(engines, "find", lambda *_: engine.ENGINE)
    monkeypatch.setattr("headrace.job.job.find_engine", lambda *_: engine.ENGINE)
    monkeypatch.setattr("headrace.job.rules.job_rules.engine_names", lambda: ("local", "mine"))
    return platform


def test_its_options_and_rules_are_those_of_every_engine(stage: Stage, platform: Platform) -> None:
    plain = stage.job("print(1)").model_dump(mode="json", exclude_unset=True)

    def changed(**fields: object) -> Job:
        return Job(**{**plain, **fields})

    job = changed(tags=[{"key": "team", "value": "a"}], engines={"mine": {"queue": "long"}})
    assert [unused.field for unused in engines.plan(job, "mine").without_effect] == ["tags"]
    engines.start(job, "mine", detach=True)
    assert platform.queue == "long"
    for wrong, field in (({"queue": 7}, "engines.mine.queue"), ({"lane": "x"}, "engines.mine.lane")):
        with pytest.raises(JobInvalid) as caught:
            engines.plan(changed(engines={"mine": wrong}), "mine")
        assert [problem.field for problem in caught.value.problems] == [field]
    with pytest.raises(JobInvalid, match="runs no images"):
        engines.plan(changed(source_dir=None, entry_point=None, image_uri="x"), "mine")


def test_the_engine_of_the_page_plans_starts_stops_and_ends_a_run(stage: Stage, platform: Platform) -> None:
    job = stage.job("print(1)", instance_groups=groups(data=1, dnn=1))
    planned = engines.plan(job, "mine")
    assert [host.address for host in planned.plan.hosts] == ["algo-1.cluster", "algo-2.cluster"]
    assert [one.name for one in engines.render(job, "mine")] == ["plan.json"]
    run = Run(engines.start(job, "mine", detach=True).paths)
    assert (run.header.engine, run.header.supervisor_pid) == ("mine", 0)
    assert sorted(platform.trees) == ["algo-1", "algo-2"]
    for tree in platform.trees.values():
        assert Path(tree).is_relative_to(run.paths.root)
        secrets = [file for file in Path(tree).rglob("*") if "secret" in file.name]
        assert secrets
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in secrets)
    (run.paths.engine / "agent.log").write_text("a warning")
    documents = {document.name: document.text for document in engines.logs(run)}
    assert documents == {"engine/agent.log": "a warning", "my-platform.txt": f"{run.id} is queued"}
    platform.state = "running"
    assert engines.stop(run, now=True)
    assert platform.asked == [["headrace.agent.ask", "stop", "--now"]]
    platform.state = "queued"
    assert engines.stop(run)
    assert (run.status, run.cause and run.cause.kind) == (Status.STOPPED, CauseKind.STOPPED)


@pytest.mark.parametrize("verdict", [True, False])
def test_a_run_that_is_gone_ends_as_its_agents_say_else_it_has_failed(
    stage: Stage, platform: Platform, verdict: bool
) -> None:
    run = Run(engines.start(stage.job("print(1)"), "mine", detach=True).paths)
    if verdict:
        with EventWriter(run.paths.events("coordinator")) as events:
            events.write(JobFinished(t=1.0, status=Status.COMPLETED))
    engines.refresh(run)
    assert (engines.alive(run), run.finished) == (True, False)
    platform.state = "gone"
    engines.refresh(run)
    assert run.status is (Status.COMPLETED if verdict else Status.FAILED)

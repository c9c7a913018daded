"""Data hosts that join and leave while the job runs: the coordinator's decisions, without clock or process."""

from __future__ import annotations

import json
import time
from pathlib import Path

from agent_plans import make_plan, scripts, workers
from test_agent_coordinator import Play

from headrace.agent.control.control_messages import Demand, FeedStopped, FeedUp, Heartbeat, Report
from headrace.agent.coordinator.state_machine import Phase
from headrace.agent.host.liveness import latest_demand
from headrace.feed.tuning.executor_rule import desired_hosts
from headrace.instance.launch_plan import Budget, FeedRange
from headrace.runs.events import HostJoined, HostReleased, Status

DATA = ("algo-2", "algo-3", "algo-4", "algo-5")
ALL = ("algo-1", *DATA)


class Feeding(Play):
    """A job of one trainer and four data hosts of two executors, of which one to `most` serve."""

    def __init__(self, most: int = 4, least: int = 1, **fields: object) -> None:
        reach = FeedRange(DATA, least, most, idle_after=10.0)
        super().__init__(make_plan(scripts("dnn", "algo-1"), workers("data", *DATA), feed_range=reach, **fields))
        self.come(*ALL)

    def needs(self, executors: float, seconds: float, stall: float = 0.5, link: float = 0.1) -> None:
        beat = Heartbeat(demands=(Demand(executors, stall, link),))
        for _ in range(round(seconds * 10)):
            self.take(self.core.report("algo-1", Report(0, beat), self.now))
            self.wait(0.1, alive=[host for host in DATA if not self.core.orders(host).verdict])
            for host in self.serving():
                if self.state(host) == "starting":
                    self.say(host, FeedUp(2))
            for host in DATA:
                if not self.core.orders(host).serve and self.state(host) == "leaving":
                    self.say(host, FeedStopped())

    def serving(self) -> list[str]:
        return [host for host in DATA if self.core.orders(host).serve]

    def state(self, host: str) -> str:
        return next((each.state for each in self.core.orders("algo-1").feed if each.host == host), "")


def test_only_the_least_number_serves_until_more_are_needed_and_more_join_by_steps() -> None:
    play = Feeding()
    play.needs(1.0, 5)
    assert play.serving() == ["algo-2"]
    assert [event.host for event in play.of(HostReleased)] == list(DATA[1:])
    play.needs(3.0, 4)  # 3.45 executors with what is to spare: two hosts
    assert play.serving() == ["algo-2", "algo-3"]
    assert [(event.host, event.desired) for event in play.of(HostJoined)] == [("algo-3", 2)]
    play.needs(30.0, 4)
    assert play.serving() == list(DATA)


def test_more_than_the_most_never_serve() -> None:
    play = Feeding(most=3)
    play.needs(100.0, 20)
    assert play.serving() == list(DATA[:3])


def test_ranks_that_hardly_wait_or_a_full_link_get_no_more() -> None:
    play = Feeding()
    play.needs(30.0, 10, stall=0.005)
    assert play.serving() == ["algo-2"]
    play.needs(30.0, 10, link=0.9)
    assert play.serving() == ["algo-2"]


def test_one_that_is_not_needed_is_asked_for_nothing_more_and_stopped_a_moment_later() -> None:
    play = Feeding()
    play.needs(5.0, 10)
    assert play.serving() == list(DATA[:3])
    play.needs(1.0, 8)
    assert play.serving() == list(DATA[:3])  # not yet
    play.needs(1.0, 4)
    assert play.state("algo-4") == "leaving"
    assert play.core.orders("algo-4").serve
    play.needs(1.0, 5)
    assert not play.core.orders("algo-4").serve
    assert play.state("algo-4") == ""
    assert play.of(HostReleased)[-1].host == "algo-4"
    play.needs(1.0, 20)
    assert play.serving() == ["algo-2"]
    play.needs(5.0, 10)  # and back
    assert play.serving() == list(DATA[:3])
    assert play.core.phase is Phase.RUNNING


def test_one_that_is_lost_is_replaced_and_the_job_goes_on_even_if_it_was_the_only_one() -> None:
    play = Feeding()
    play.needs(1.0, 2)
    play.take(play.core.host_gone("algo-2", "agent killed by SIGKILL", play.now))
    play.needs(1.0, 3)
    assert play.core.phase is Phase.RUNNING
    assert play.state("algo-3") == "ready"
    play.exit("algo-1", "0", 0)
    play.wait(0.2, alive=list(DATA))
    play.end("algo-1", *DATA[1:])
    assert play.verdict.status is Status.COMPLETED


def test_a_host_costs_by_the_time_that_it_is_there() -> None:
    budget = Budget(1000.0, {"dnn": 0.0, "data": 1.0}, "us-east-1", "")
    play = Feeding(budget=budget)
    limits = play.core._limits
    play.needs(1.0, 10)
    begun = limits.cost(play.now)
    assert 9.0 < begun < 11.0  # one host
    play.needs(30.0, 10)
    assert 30.0 < limits.cost(play.now) - begun < 41.0  # four, after a moment
    play.needs(1.0, 80)
    last = limits.cost(play.now)
    play.needs(1.0, 10)
    assert 9.0 < limits.cost(play.now) - last < 11.0


def test_without_a_range_all_serve() -> None:
    play = Play(make_plan(scripts("dnn", "algo-1"), workers("data", "algo-2", "algo-3")))
    play.come("algo-1", "algo-2", "algo-3")
    play.wait(3, alive=["algo-1", "algo-2", "algo-3"])
    assert all(play.core.orders(host).serve for host in ("algo-2", "algo-3"))
    assert not play.of(HostReleased)


def test_the_rule_grows_fourfold_at_most_and_never_below_one() -> None:
    assert desired_hosts(needed=100.0, executors=2, hosts=2, stall=0.5, link=0.1) == 8
    assert desired_hosts(needed=6.0, executors=2, hosts=2, stall=0.5, link=0.1) == 4
    assert desired_hosts(needed=6.0, executors=2, hosts=2, stall=0.009, link=0.1) == 2
    assert desired_hosts(needed=6.0, executors=2, hosts=2, stall=0.5, link=0.81) == 2
    assert desired_hosts(needed=0.1, executors=2, hosts=5, stall=0.0, link=0.0) == 1


def test_what_a_rank_needs_is_read_from_the_end_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    assert latest_demand(path) is None
    second = {
        "metric": "loader",
        "t": time.time(),
        "loader": "train",
        "epoch": 0,
        "steps": 4,
        "samples": 8,
        "wait": 0.5,
    }
    second |= {"step": 1.0, "step_min": 0.1, "step_max": 0.4, "bytes": 9, "needed": 3.5, "link": 0.25}
    other = {"metric": "host", "t": time.time()}
    lines = [{"old": 1}] * 200 + [second, other]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"metric": "loader", "t"')
    assert latest_demand(path) == Demand(3.5, 0.5, 0.25)
    path.write_text("\n" + json.dumps(second | {"t": time.time() - 60}) + "\n")
    assert latest_demand(path) is None

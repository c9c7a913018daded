"""Data hosts that join and leave while the job runs: the coordinator's decisions, without clock or process."""

from __future__ import annotations

import json
import time
from pathlib import Path

from agent_plans import make_plan, scripts, workers
from test_agent_coordinator import Play

from headrace.agent.control.control_messages import Demand, Heartbeat, HostEnded, Report, ServerDown, ServerUp
from headrace.agent.coordinator.host_state import RETURNS
from headrace.agent.coordinator.state_machine import Phase
from headrace.agent.host.programs import latest_demand
from headrace.feed.tuning.executor_rule import desired_hosts
from headrace.instance.launch_plan import Budget, FeedRange
from headrace.runs import Cause, CauseKind
from headrace.runs.events import DataWorkerLost, HostJoined, HostLost, HostReleased, Status

DATA = ("algo-2", "algo-3", "algo-4", "algo-5")
ALL = ("algo-1", *DATA)


class Feeding(Play):
    """A job of one trainer and four data hosts of two executors, of which one to `most` are there. Also its engine."""

    def __init__(self, most: int = 4, least: int = 1, came: tuple[str, ...] = DATA, **fields: object) -> None:
        reach = FeedRange(DATA, least, most, idle_after=10.0)
        super().__init__(make_plan(scripts("dnn", "algo-1"), workers("data", *DATA), feed_range=reach, **fields))
        self.there: dict[str, int] = {}
        self.able = came
        self.come("algo-1")
        self.engine()

    def needs(self, executors: float, seconds: float, stall: float = 0.5, link: float = 0.1) -> None:
        beat = Heartbeat(demands=(Demand(executors, stall, link),))
        for _ in range(round(seconds * 10)):
            self.take(self.core.report("algo-1", Report(0, beat), self.now))
            self.wait(0.1, alive=[host for host in self.there if not self.core.orders(host).verdict])
            self.engine()

    def engine(self) -> None:
        """Each host that is wanted has an instance with an agent that does what it is told; no other has."""
        for host, number in self.core.wanted.items():
            if host in self.able and self.there.get(host) != number:
                self.there[host] = number
                self.numbers[host] = 0
                self.come(host)
        for host in list(self.there):
            orders = self.core.orders(host)
            if orders.stop is not None:
                assert orders.stop.leave or self.core.phase is not Phase.RUNNING
                self.say(host, HostEnded())
                del self.there[host]
            elif orders.start and self.state(host) == "starting":
                self.say(host, ServerUp("feed", executors=2))

    def serving(self) -> list[str]:
        return sorted(self.there)

    def state(self, host: str) -> str:
        return next((each.state for each in self.core.orders("algo-1").feed if each.host == host), "")

    def lose(self, host: str) -> None:
        del self.there[host]
        self.take(self.core.host_gone(host, "agent killed by SIGKILL", self.now))


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
    assert "algo-4" in play.core.wanted
    play.needs(1.0, 5)
    assert "algo-4" not in play.core.wanted
    assert play.state("algo-4") == ""
    assert play.of(HostReleased)[-1].host == "algo-4"
    play.needs(1.0, 20)
    assert play.serving() == ["algo-2"]
    play.needs(5.0, 10)  # and back
    assert play.serving() == list(DATA[:3])
    assert play.core.phase is Phase.RUNNING
    assert not play.of(HostLost)
    assert not play.of(DataWorkerLost)


def test_one_that_is_lost_is_replaced_and_the_job_goes_on_even_if_it_was_the_only_one() -> None:
    play = Feeding()
    play.needs(1.0, 2)
    play.lose("algo-2")
    play.needs(1.0, 3)
    assert play.core.phase is Phase.RUNNING
    assert play.state("algo-3") == "ready"
    assert play.serving() == ["algo-3"]
    play.exit("algo-1", "0", 0)
    play.wait(0.2, alive=["algo-1", "algo-3"])
    play.end("algo-1", "algo-3")
    assert play.verdict.status is Status.COMPLETED


def test_one_that_is_lost_is_asked_for_again_after_a_pause_and_its_old_agent_counts_no_more() -> None:
    play = Feeding(least=4)
    play.needs(1.0, 2)
    assert play.serving() == list(DATA)
    play.lose("algo-3")
    play.needs(1.0, 1)
    assert play.state("algo-3") == "lost"
    assert [event.host for event in play.of(DataWorkerLost)] == ["algo-3"]
    play.needs(1.0, 8)
    assert play.serving() == ["algo-2", "algo-4", "algo-5"]
    play.needs(1.0, 2)
    assert play.serving() == list(DATA)
    assert play.core.wanted["algo-3"] == 1
    assert play.state("algo-3") == "ready"
    play.lose("algo-3")  # soon after the first time: the pause is twice as long
    play.needs(1.0, 18)
    assert "algo-3" not in play.core.wanted
    play.needs(1.0, 3)
    assert play.core.wanted["algo-3"] == 2


def test_one_that_does_not_come_in_time_is_given_up_without_harm_and_another_is_asked_for() -> None:
    play = Feeding(came=("algo-2", "algo-4", "algo-5"), start_timeout=20.0)
    play.needs(3.0, 4)
    assert play.core.wanted.keys() == {"algo-1", "algo-2", "algo-3"}
    play.needs(3.0, 22)
    assert [(event.host, event.reason) for event in play.of(HostLost)] == [("algo-3", "did not come within 20 s")]
    assert not play.of(DataWorkerLost)  # nothing served less than before
    assert play.serving() == ["algo-2", "algo-4"]
    assert [event.host for event in play.of(HostJoined)] == ["algo-4"]


def test_one_for_which_the_engine_gets_no_instance_is_lost_without_harm_and_asked_for_later() -> None:
    play = Feeding(most=2, came=("algo-2",))
    play.needs(3.0, 4)
    assert "algo-3" in play.core.wanted
    play.take(play.core.host_gone("algo-3", "it gets no node: sbatch refused the job", play.now))
    assert "algo-3" not in play.core.wanted
    play.able = DATA
    play.needs(3.0, 4)
    assert play.serving() == ["algo-2", "algo-4"]  # the next one
    assert play.core.phase is Phase.RUNNING
    assert not play.of(DataWorkerLost)
    assert [event.host for event in play.of(HostReleased)] == ["algo-3", "algo-4", "algo-5"]  # as in the beginning


def test_a_job_ends_when_each_of_its_data_hosts_was_lost_again_and_again() -> None:
    play = Feeding()
    lost = 0
    while play.core.phase is Phase.RUNNING and lost < 100:
        play.needs(1.0, 1)
        if play.there:
            play.lose(next(iter(play.there)))
            lost += 1
    assert lost == len(DATA) * RETURNS
    play.wait(10, alive=["algo-1"])
    play.end("algo-1")
    assert play.verdict.cause.kind is CauseKind.DATA_SERVICE_LOST


def test_one_whose_feed_server_has_ended_for_good_goes_and_does_not_come_back() -> None:
    play = Feeding(least=2)
    play.needs(1.0, 2)
    play.say("algo-3", ServerDown("feed", Cause(CauseKind.SERVER_FAILED, "no such module"), True))
    play.needs(1.0, 60)
    assert play.serving() == ["algo-2", "algo-4"]
    assert "algo-3" not in play.core.wanted


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
    assert play.core.wanted == dict.fromkeys(["algo-1", "algo-2", "algo-3"], 0)
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

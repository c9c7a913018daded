"""What a grid's controller does next, and what follows a failure: decided by values alone."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from headrace.engines.planning.plan_artefacts import check_places
from headrace.errors import EngineRefused, EngineUnreachable, JobInvalid, NameInUse, StorageError
from headrace.grid.controller.attempt_runner import failure_of_run, failure_of_start, next_try
from headrace.grid.controller.grid_controller import (
    BY_BUDGET,
    BY_DEADLINE,
    BY_REQUEST,
    Held,
    RateLimit,
    Situation,
    next_actions,
)
from headrace.grid.controller.line_jobs import attempt_name
from headrace.grid.grid_file import Limits, Retry, RetryCause
from headrace.grid.grid_record import (
    AttemptRecord,
    AttemptState,
    CopyRecord,
    CopyState,
    GridRecord,
    LineRecord,
    LineState,
)
from headrace.grid.line import Line
from headrace.grid.plan_grid import job_name
from headrace.instance.s3 import S3Access
from headrace.job import Job
from headrace.runs import Cause, CauseKind, Status

REGIONS = ("us-west-2", "eu-west-1")
replace = msgspec.structs.replace


def line(
    index: int,
    state: LineState = LineState.WAITING,
    region: str = "us-west-2",
    engine: str = "local",
    attempts: int = 0,
) -> LineRecord:
    made = tuple(
        AttemptRecord(number + 1, f"g-{index}-a{number}", engine, region, "r", AttemptState.ENDED, 0.0)
        for number in range(attempts)
    )
    return LineRecord(
        index, f"{index:012x}", f"a:{index}", {}, f"g-{index:012x}", engine, region, 1.0, 1.0, state, attempts=made
    )


def grid(*lines: LineRecord, **more: object) -> GridRecord:
    return GridRecord("g", "/g.yaml", "d", 0.0, lines, **more)  # type: ignore[arg-type]


lines_of = st.lists(
    st.tuples(st.sampled_from(list(LineState)), st.sampled_from(REGIONS), st.sampled_from(["local", "slurm"])),
    min_size=1,
    max_size=30,
).map(lambda found: [line(index, *each) for index, each in enumerate(found)])


@pytest.mark.promise("grid-reference", "limits are kept, and another attempt follows only what it may help against")
@given(
    lines=lines_of,
    parallel=st.none() | st.integers(1, 9),
    west=st.none() | st.integers(1, 5),
    local=st.integers(1, 9),
    hosts=st.lists(st.integers(1, 4), min_size=30, max_size=30),
)
def test_nothing_starts_above_a_limit_and_what_could_start_is_not_kept_waiting(
    lines: list[LineRecord], parallel: int | None, west: int | None, local: int, hosts: list[int]
) -> None:
    limits = Limits(parallel=parallel, per_region={} if west is None else {"us-west-2": west})
    of = {each.key: hosts[each.index] for each in lines}
    found = next_actions(Situation(grid(*lines), 1.0, hosts=of, local_hosts=local), limits)
    known = {each.key: each for each in lines}
    going = [each for each in lines if each.state in (LineState.STARTING, LineState.RUNNING)]
    after = going + [known[key] for key in found.start]
    assert all(known[key].state is LineState.WAITING for key in found.start)
    assert len(after) <= max(parallel or len(lines), len(going))
    regions = Counter(each.region for each in after)
    before = Counter(each.region for each in going)
    assert regions["us-west-2"] <= max(west or len(lines), before["us-west-2"])
    here = [of[each.key] for each in after if each.engine == "local"]
    if found.start and any(known[key].engine == "local" for key in found.start):
        assert sum(here) <= local or len(here) == 1
    if parallel is None and west is None:
        waiting = [each for each in lines if each.state is LineState.WAITING and each.engine == "slurm"]
        assert {each.key for each in waiting} <= set(found.start)
    assert set(found.resolve) == {each.key for each in lines if each.state is LineState.STARTING}
    assert found.over == all(each.state.over for each in lines)


def test_a_line_starts_when_its_copies_are_whole_and_fails_when_one_cannot_be_made() -> None:
    waits = replace(line(0), waits_for=(("s3://a", "us-west-2"),))
    copy = CopyRecord("s3://a", "us-east-1", "us-west-2", "", CopyState.WAITING)
    first = next_actions(Situation(grid(waits, line(1), copies=(copy,)), 1.0), Limits(local_hosts=9))
    assert (first.start, first.copy) == ((line(1).key,), (("s3://a", "us-west-2"),))
    busy = Situation(grid(waits, copies=(copy,)), 1.0, busy=frozenset({("s3://a", "us-west-2")}))
    assert next_actions(busy, Limits()).copy == ()
    done = grid(waits, copies=(replace(copy, state=CopyState.DONE),))
    assert next_actions(Situation(done, 1.0), Limits()).start == (waits.key,)
    failed = grid(waits, copies=(replace(copy, state=CopyState.FAILED, reason="denied"),))
    assert next_actions(Situation(failed, 1.0), Limits()).close == {
        waits.key: (LineState.FAILED, "s3://a could not be copied: denied")
    }


@pytest.mark.parametrize(
    ("more", "spent", "why"),
    [({"stop_asked": 1.0}, 0.0, BY_REQUEST), ({"deadline": 5.0}, 0.0, BY_DEADLINE), ({"budget": 3.0}, 3.0, BY_BUDGET)],
    ids=["asked", "deadline", "budget"],
)
def test_a_stop_closes_what_waits_stops_what_runs_and_starts_nothing(
    more: dict[str, float], spent: float, why: str
) -> None:
    all_states = [line(index, state) for index, state in enumerate(LineState)]
    found = next_actions(Situation(grid(*all_states, **more), 5.0, spent=spent), Limits())
    by = {each.state: each.key for each in all_states}
    assert found.close == {by[LineState.WAITING]: (LineState.STOPPED, why)}
    assert (found.stop, found.resolve) == ((by[LineState.RUNNING],), (by[LineState.STARTING],))
    assert (found.start, found.stopping) == ((), why)
    early = next_actions(Situation(grid(*all_states, deadline=5.0, budget=3.0), 4.9, spent=2.9), Limits())
    assert early.stopping == ""


def test_the_first_line_that_a_limit_holds_back_is_named_with_the_limit() -> None:
    lines = [line(index, engine="slurm") for index in range(3)]
    of = {each.key: 2 for each in lines}
    local = [replace(each, engine="local") for each in lines]
    here = next_actions(Situation(grid(*local), 1.0, hosts=of, local_hosts=2), Limits()).held
    words = "limits.local_hosts is 2, one a CPU of this machine: 2 hosts run here, and this line has 2"
    assert here == Held(lines[1].key, "local_hosts", words)
    parallel = next_actions(Situation(grid(*lines), 1.0), Limits(parallel=2)).held
    assert parallel == Held(lines[2].key, "parallel", "limits.parallel is 2")
    region = lines[0].region
    found = next_actions(Situation(grid(*lines), 1.0), Limits(per_region={region: 1})).held
    assert found == Held(lines[1].key, f"per_region.{region}", f"limits.per_region of {region} is 1")
    assert next_actions(Situation(grid(*lines), 1.0), Limits()).held is None


def test_a_line_waits_until_its_pause_is_over() -> None:
    paused = replace(line(0), not_before=10.0)
    assert next_actions(Situation(grid(paused), 9.9), Limits()).start == ()
    assert next_actions(Situation(grid(paused), 10.0), Limits()).start == (paused.key,)


def refused(code: str) -> EngineRefused:
    error = EngineRefused("no")
    error.code = code
    return error


@pytest.mark.promise("grid-reference", "limits are kept, and another attempt follows only what it may help against")
def test_causes_decide_what_may_help() -> None:
    def run(kind: CauseKind, infrastructure: bool = False) -> RetryCause | None:
        return failure_of_run(Cause(kind, "words", infrastructure=infrastructure))

    assert run(CauseKind.INSTANCE_NOT_STARTED, infrastructure=True) is RetryCause.CAPACITY
    assert run(CauseKind.PREEMPTED) is RetryCause.SPOT
    assert run(CauseKind.ENGINE_FAILED) is RetryCause.INTERNAL
    assert run(CauseKind.HOST_LOST, infrastructure=True) is RetryCause.INTERNAL
    for own in (CauseKind.PROGRAM_EXITED, CauseKind.OUT_OF_MEMORY, CauseKind.MAX_RUN, CauseKind.STALLED):
        assert run(own) is None
    assert failure_of_start(EngineUnreachable("busy")) is RetryCause.THROTTLED
    for code in ("ResourceLimitExceeded", "ServiceQuotaExceededException", "CapacityError"):
        assert failure_of_start(refused(code)) is RetryCause.CAPACITY
    assert failure_of_start(refused("SlowDown")) is RetryCause.THROTTLED
    assert failure_of_start(refused("ServiceUnavailable")) is RetryCause.INTERNAL
    assert failure_of_start(refused("AccessDenied")) is None
    assert failure_of_start(StorageError("disk")) is RetryCause.INTERNAL
    for own_error in (EngineRefused("no"), NameInUse("taken"), JobInvalid(())):
        assert failure_of_start(own_error) is None


def test_a_bucket_of_a_job_that_nobody_answers_for_may_be_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    job = Job("hello", command=["true"], instance_type="ml.c5.xlarge", instance_count=1, output_path="s3://out/here")
    with pytest.raises(EngineRefused, match="no answer") as silent:
        check_places(job, access=S3Access(region="us-east-1", endpoint="http://127.0.0.1:9"))
    assert failure_of_start(silent.value) is RetryCause.THROTTLED


def test_another_region_comes_first_then_a_pause_that_doubles_and_only_what_is_allowed_is_tried() -> None:
    rules = Retry(attempts=5, delay=10.0)
    moved = []
    for attempts in range(1, 6):
        tried = line(0, attempts=attempts, region=REGIONS[(attempts - 1) % 2])
        found = next_try(tried, RetryCause.CAPACITY, rules, REGIONS, 100.0)
        assert found is not None
        moved.append((found.region, found.not_before - 100.0))
    west, east = REGIONS
    assert moved == [(east, 0.0), (west, 10.0), (east, 0.0), (west, 20.0), (east, 0.0)]
    assert next_try(line(0, attempts=6), RetryCause.CAPACITY, rules, REGIONS, 100.0) is None
    again = replace(line(0, attempts=6), extra_attempts=1)
    assert next_try(again, RetryCause.CAPACITY, rules, REGIONS, 100.0) is not None
    pauses = [next_try(line(0, attempts=n), RetryCause.INTERNAL, rules, REGIONS, 0.0) for n in (1, 2, 3)]
    assert [(each.region, each.not_before) for each in pauses if each] == [(west, 10.0), (west, 20.0), (west, 40.0)]
    stays = next_try(line(0, attempts=1), RetryCause.SPOT, Retry(elsewhere=False), REGIONS, 0.0)
    assert stays is not None
    assert stays.region == west
    assert next_try(line(0, attempts=1), RetryCause.SPOT, Retry(on=(RetryCause.CAPACITY,)), REGIONS, 0.0) is None
    assert next_try(line(0, attempts=1), None, rules, REGIONS, 0.0) is None


def test_an_attempt_that_never_began_because_its_controller_died_does_not_count() -> None:
    died = Cause(CauseKind.CALLER_DIED, "died", infrastructure=True)
    lost = replace(line(0, attempts=4), attempts=tuple(replace(a, cause=died) for a in line(0, attempts=4).attempts))
    counted = replace(lost, attempts=(*lost.attempts, line(0, attempts=1).attempts[0]))
    assert next_try(counted, RetryCause.INTERNAL, Retry(attempts=1), REGIONS, 0.0) is not None
    assert counted.attempts[-1].status is not Status.COMPLETED


@given(rate=st.floats(0.1, 50), gaps=st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_a_rate_is_kept_over_any_time_and_is_less_after_a_platform_has_asked_for_less(
    rate: float, gaps: list[float]
) -> None:
    limit, now, taken = RateLimit(rate, 0.0), 0.0, 0
    burst = max(1.0, 2 * rate)
    for gap in gaps:
        now += gap
        while limit.take(now):
            taken += 1
        assert taken <= now * rate + burst + 1e-6
    limit.throttled()
    assert not limit.take(now)
    assert not limit.take(now + 0.9 / rate)
    assert limit.take(now + 2.01 / rate)


@given(st.text("ab-", min_size=1, max_size=80), st.text("ab-", min_size=1, max_size=80), st.sampled_from([1, 2, 12]))
def test_grids_with_different_names_have_lines_with_different_names_however_long(
    one: str, other: str, number: int
) -> None:
    of = Line(0, "0123456789ab", "a:1", {})
    names = [attempt_name(job_name(grid_name, of), number) for grid_name in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    assert all(len(name) <= 63 for name in names)


def test_a_line_that_is_to_stop_is_stopped_and_the_others_go_on() -> None:
    asked = [
        replace(line(index, state), stop_asked=1.0)
        for index, state in enumerate((LineState.WAITING, LineState.RUNNING))
    ]
    others = [line(2, LineState.WAITING), line(3, LineState.RUNNING)]
    actions = next_actions(Situation(grid(*asked, *others), 10.0, local_hosts=9), Limits())
    assert actions.stop == (asked[1].key,)
    assert actions.close == {asked[0].key: (LineState.STOPPED, BY_REQUEST)}
    assert actions.start == (others[0].key,)
    assert actions.stopped == {each.key: BY_REQUEST for each in asked}
    assert not actions.stopping


def test_names_of_attempts_keep_the_key_and_are_no_longer_than_names_may_be() -> None:
    long = f"{'g' * 50}-0123456789ab"
    assert attempt_name(long, 1) == long
    again = attempt_name(long, 12)
    assert len(again) == 63
    assert again.endswith("-0123456789ab-a12")

"""What a run's links carry, and when the model may be believed: pure, over values."""

from __future__ import annotations

import io
import sys

import msgspec
import pytest
from recorded_runs import columns_of
from test_advise import (
    DATA,
    DEFAULT_TYPES,
    HOSTS,
    LOADERS,
    PLAN,
    TRAINER,
    WORKERS,
    facts,
    host_second,
    measured,
    price_of,
    step_second,
    worker_second,
)

from headrace.cli.verify_advice import unverified
from headrace.cli.views.cost_tables import advice_document, milliseconds
from headrace.cli.views.table import show
from headrace.insight.advise.advisor import Advised, judge_clusters
from headrace.insight.advise.calibrate import FULL, MEGABIT, Measured, carried, measure, published_bandwidth, with_links
from headrace.insight.advise.clusters import MISSED, Candidate, bandwidth_of, explains
from headrace.insight.evidence import LINK_BUSY, NEXT, NEXT_IDLE, VerdictName
from headrace.insight.figures.columns import Key, Table
from headrace.insight.performance_model import Range
from headrace.insight.verdict import Verdict
from headrace.runs import Stream, WorkerSecond

FEED = Stream("data", "algo-1", "feed")
SECONDS = (1.0, 2.0, 3.0, 4.0)


def judged(run: Measured, verdict: Verdict | None = None, types: tuple[str, ...] = DEFAULT_TYPES) -> Advised:
    names = dict.fromkeys([*run.instance_types, *types])
    prices = [price for name in names if (price := price_of(name, "us-east-1")) is not None]
    return judge_clusters("run-1", run, prices, types=types, max_hosts=8, region="us-east-1", verdict=verdict)


def sender(sending: float, sent: float) -> dict[Stream, list[WorkerSecond]]:
    """Feed servers that sent `sent` bytes in `sending` seconds of every second."""
    one = worker_second(1.0, 2, 0.1, 0.01, 40)
    return {FEED: [msgspec.structs.replace(one, t=t, sending=sending, sent=int(sent)) for t in SECONDS]}


def workers_of(records: dict[Stream, list[WorkerSecond]]) -> dict[Key, Table]:
    return columns_of(records).tables("worker")


# What a link carries


def test_a_busy_link_carries_what_it_carried_while_it_sent_and_an_idle_one_tells_nothing() -> None:
    assert carried("data", workers_of(sender(0.8, 20e6))) == pytest.approx(25e6)
    assert carried("data", workers_of(sender(LINK_BUSY / 100, 20e6))) == pytest.approx(40e6)
    assert carried("data", workers_of(sender(LINK_BUSY / 100 - 0.01, 20e6))) is None
    assert carried("train", workers_of(sender(0.8, 20e6))) is None
    local = {FEED: [msgspec.structs.replace(one, loader="train") for one in sender(0.8, 20e6)[FEED]]}
    assert carried("data", workers_of(local)) is None


def linked(
    sent: float, *, hosts: int = 1, limits: dict[str, float] | None = None
) -> tuple[dict[str, float | None], bool, list[str]]:
    groups = [facts("data", DATA, hosts), facts("train", TRAINER, trains=True)]
    assumptions: list[str] = []
    found, unsure = with_links(groups, workers_of(sender(0.9, 0.9 * sent)), limits or {}, assumptions)
    return {one.name: one.bandwidth for one in found}, unsure, assumptions


def test_a_measured_link_is_the_data_hosts_own_where_that_agrees_with_what_is_known_of_it() -> None:
    limit = 25e6
    found, unsure, assumptions = linked(FULL * limit, limits={"data": limit})
    assert (found, unsure) == ({"data": pytest.approx(FULL * limit), "train": None}, False)
    assert assumptions == [
        "a link of data carries what it carried while it sent, 160 Mbit/s a host (measured); every host has one of its "
        "own"
    ]
    found, unsure, assumptions = linked(FULL * limit)  # the type's own 1.25 Gbit/s do not explain it
    assert (found["data"], unsure) == (pytest.approx(FULL * limit), True)
    assert "which end was not measured" in assumptions[0]


def test_a_trainer_that_takes_in_all_that_its_link_carries_is_the_limit_however_many_hosts_send() -> None:
    found, unsure, assumptions = linked(12.5e6, hosts=2, limits={"train": 25e6})
    assert (found["train"], unsure) == (pytest.approx(25e6), False)
    assert found["data"] == published_bandwidth(DATA)
    assert "the links of train were full: they took in 200 Mbit/s a host (measured)" in assumptions[0]


def test_without_a_busy_link_the_job_limits_a_group_and_else_its_type_does() -> None:
    groups = [facts("data", DATA), facts("train", TRAINER, trains=True)]
    found, unsure = with_links(groups, workers_of(sender(0.1, 1e6)), {"data": 25e6}, [])
    assert ([one.bandwidth for one in found], unsure) == ([25e6, None], False)


def shaped(bandwidth: float, **more: object) -> Measured:
    """A run whose data host can make enough, and sends 2 MB a step."""
    helper = facts("data", DATA, cpu=Range(0.0001, 0.0001, 0.0001), bandwidth=bandwidth)
    groups = (helper, facts("train", TRAINER, trains=True, executors=0))
    run = measured(0.084, 0.76, *groups, compute=0.02, size=2e5)
    return msgspec.structs.replace(run, **more)


def test_candidates_have_the_link_that_was_measured_and_others_in_proportion() -> None:
    run = shaped(200 * MEGABIT)
    assert bandwidth_of(run, DATA) == 25e6
    ratio = (published_bandwidth("ml.c5.9xlarge") or 0) / (published_bandwidth(DATA) or 1)
    assert bandwidth_of(run, "ml.c5.9xlarge") == pytest.approx(25e6 * ratio)
    found = judged(run)
    assert found.now.predicted.value == pytest.approx(0.08)
    assert found.trusted
    own = next(one for one in found.candidates if (one.data_hosts, one.instance_type) == (1, DATA))
    assert (own.step.value, own.verdict) == (pytest.approx(0.08), "network-bound")
    two = next(one for one in found.candidates if (one.data_hosts, one.instance_type) == (2, DATA))
    assert two.step.value == pytest.approx(0.04)  # a link of its own
    assert any("in proportion to their published baseline bandwidths" in text for text in found.assumptions)
    alone = judged(run, types=(DATA,))
    assert alone.advice.startswith("4 data hosts of ml.c5.xlarge remove the wait: a predicted step of 20.0 ms")
    assert "which one was not measured" not in alone.advice
    assert judged(msgspec.structs.replace(run, link_unsure=True), types=(DATA,)).advice.endswith(
        " That holds if the link that was full is the data hosts', not the trainer's: which one was not measured."
    )


def test_more_hosts_bring_nothing_where_the_trainers_link_is_full() -> None:
    run = shaped(200 * MEGABIT)
    full = msgspec.structs.replace(run, groups=(run.groups[0], facts("train", TRAINER, trains=True, executors=0,
                                                                     bandwidth=25e6)))  # fmt: skip
    found = judged(full)
    assert [one.step.value for one in found.candidates] == pytest.approx([0.08] * len(found.candidates))
    assert found.best is None
    assert found.advice.startswith("Do not add CPU hosts: ")
    assert "the network carries no more" in found.advice


def test_a_run_tells_its_link_to_the_model() -> None:
    workers = {FEED: sender(0.9, 0.9 * 25e6)[FEED], **{s: w for s, w in WORKERS.items() if s != FEED}}
    found = measure(PLAN, columns_of(LOADERS, workers, HOSTS), limits={"data": 25e6})
    assert [one.bandwidth for one in found.groups] == [pytest.approx(25e6), None]
    assert not found.link_unsure
    assert measure(PLAN, columns_of(LOADERS, workers, HOSTS)).link_unsure
    assert [one.bandwidth for one in measure(PLAN, columns_of(LOADERS, WORKERS, HOSTS)).groups] == [None, None]


# Whether the model may be believed


def test_a_model_explains_a_run_within_a_quarter_or_within_what_its_seconds_differ() -> None:
    narrow = Range(1.0, 1.0, 1.0)
    assert explains(narrow, 1 / (1 + MISSED - 0.01))
    assert not explains(narrow, 1 / (1 + MISSED + 0.01))
    assert not explains(narrow, 1 / (1 - MISSED - 0.01))
    assert explains(Range(0.6, 1.0, 1.5), 0.61)
    assert not explains(Range(0.6, 1.0, 1.5), 0.59)


def sleeping() -> Measured:
    """A loader of another library whose samples wait: 54 of the 85 ms of a step, and no CPU time."""
    plan = [msgspec.structs.replace(PLAN[1], feed_executors=0)]
    ranks = {Stream("train", "algo-2", "0"): [step_second(t, steps=12, wait=0.65, step=1.02) for t in SECONDS]}
    hosts = {Stream("train", "algo-2", "host"): [host_second(t, 0.04) for t in SECONDS]}
    return measure(plan, columns_of(ranks, hosts))


@pytest.mark.promise("advise", "advice keeps measured and predicted apart, or is withheld where its model does not fit")
def test_nothing_is_advised_where_the_model_does_not_explain_the_run() -> None:
    found = judged(sleeping())
    assert found.now.residual > MISSED
    assert (found.trusted, found.best, found.add) == (False, None, False)
    assert found.fastest is found.cheapest is found.knee is None
    assert not any(one.marks for one in found.candidates)
    assert found.advice.startswith(
        "It cannot be told whether CPU hosts would help: ranks wait 63.7 % of a step of 85.0 ms (measured), and the "
        "model explains only 30.8 ms of it. "
    )
    assert "another library's" in found.advice
    assert "`num_workers=0`" in found.advice
    assert any("is not to be trusted" in note for note in found.notes)
    told = msgspec.structs.replace(sleeping(), workers_told=True)
    assert "probably batches are asked for late" in judged(told).advice


def test_the_table_of_a_model_that_is_not_trusted_is_withheld_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    found, shown = judged(sleeping()), []
    for everything in (False, True):
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        show(advice_document(found, everything=everything))
        shown.append(out.getvalue())
    assert "no data hosts" not in shown[0]
    assert "41 candidates are not shown, because their predictions are not to be trusted: --all" in shown[0]
    assert "predicted, NOT TRUSTED, data hosts" in shown[1]


def test_fewer_hosts_are_not_advised_by_a_model_that_does_not_explain_the_run() -> None:
    groups = (facts("data", DATA, 6), facts("train", TRAINER, trains=True, executors=3))
    run = measured(0.0905, 0.005, *groups)
    assert judged(run, types=(DATA,)).best is not None
    found = judged(measured(0.15, 0.005, *groups), types=(DATA,))
    assert (found.best, found.trusted) == (None, False)
    assert found.advice.startswith("Do not add CPU hosts: ranks wait 0.5 % of a step of 150.0 ms (measured)")
    assert "would be enough" not in found.advice


@pytest.mark.parametrize("name", [VerdictName.SKEWED, VerdictName.STALLED])
def test_a_rank_or_a_standstill_is_mended_first(name: VerdictName) -> None:
    found = judged(measured(), Verdict(name, f"{name.value}: algo-2[1] waits", NEXT[name]))
    assert found.advice.startswith(
        f"First mend what the verdict names: {name.value}: algo-2[1] waits. Next: {NEXT[name]}"
    )
    assert (found.trusted, found.best, found.add) == (False, None, False)
    assert found.advice.endswith("the model knows equal ranks whose steps do not stop.")
    usual = judged(measured(), Verdict(VerdictName.INPUT_BOUND, "input-bound: the ranks wait", ""))
    assert usual == judged(measured())


def test_no_hosts_are_advised_to_a_run_that_waits_although_its_data_workers_have_time_to_spare() -> None:
    idle = Verdict(VerdictName.INPUT_BOUND, "input-bound: the ranks wait", NEXT_IDLE, workers_idle=True)
    found = judged(measured(), idle)
    assert (found.trusted, found.best, found.add) == (False, None, False)
    assert found.advice.startswith(f"First mend what the verdict names: input-bound: the ranks wait. Next: {NEXT_IDLE}")
    busy = judged(measured(), msgspec.structs.replace(idle, workers_idle=False))
    assert busy.best is not None, "without that it is advised hosts"


def test_a_host_that_is_no_faster_and_dearer_than_none_is_not_advised() -> None:
    # the loader's samples cost less than the trainer's own cores can make with headrace's loader
    run = msgspec.structs.replace(
        measured(0.3, 0.7, facts("train", TRAINER, trains=True, executors=4, cpu=Range(0.01, 0.01, 0.01))),
        workers_told=False,
        step=Range(0.08, 0.3, 0.4),
    )
    found = judged(run)
    assert found.trusted
    assert found.best is not None
    assert found.best.data_hosts == 0
    assert not found.add
    assert found.advice.startswith("headrace.feed.DataLoader without data hosts removes the wait: a predicted step of ")


# Words


def test_times_have_the_digits_of_a_report() -> None:
    assert [milliseconds(one) for one in (0.0003, 0.0098, 0.09)] == ["0.30 ms", "9.80 ms", "90.0 ms"]


def test_what_was_advised_and_not_run_is_said() -> None:
    found = judged(measured(), types=(DATA,))
    best = found.best
    assert best is not None
    assert best.data_hosts == 3

    def of(hosts: int) -> Candidate:
        return next(one for one in found.candidates if one.data_hosts == hosts)

    assert unverified(found, of(3), 12) == ""
    assert unverified(found, of(1), 4) == (
        "Not verified: the advised 3 x ml.c5.xlarge. It needs 12 CPUs on this machine, where 4 are free; "
        "1 x ml.c5.xlarge is the fastest candidate that fits."
    )
    nothing = msgspec.structs.replace(found, best=None)
    assert unverified(nothing, of(1), 4).startswith("Nothing was advised: 1 x ml.c5.xlarge is the fastest")

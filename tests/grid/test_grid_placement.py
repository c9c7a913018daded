"""Where lines run: examples of the seed's four regions, and what holds for every placement."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog.prices import price_of, regions
from headrace.grid.grid_file import PlacementRules
from headrace.grid.place_line import Demand, Placer, Refusal
from headrace.job.problems.finding import examine

M5 = "ml.m5.xlarge"
SF, FRANKFURT = "s3://campaigns-sf/2026", "s3://campaigns-fra/2026"
US, EU = "us-west-2", "eu-central-1"
RULES = {
    "regions": ["us-east-1", US, "eu-west-1", EU],
    "data": {
        SF: {"region": "us-west-1", "gigabytes": 100},
        FRANKFURT: {"region": EU, "gigabytes": 100, "stays_in": [EU, "eu-west-1"]},
    },
}


def placed(demand: Demand, **rules: object):
    return Placer(PlacementRules.model_validate({**RULES, **rules})).place(demand)


def demand(*places: str, hours: float = 10, region: str = "", count: int = 4) -> Demand:
    return Demand({M5: count}, places, hours * 3600, region)


def test_a_line_runs_where_its_data_are_although_another_region_is_cheaper() -> None:
    found = placed(demand(f"{FRANKFURT}/one"))
    assert found.chosen is not None
    assert (found.chosen.region, found.chosen.copies, found.decided_by) == (EU, (), "data_local")
    ireland = next(each for each in found.others if each.region == "eu-west-1")
    assert ireland.copies[0].source == EU
    assert [each.region for each in found.others if each.refused] == ["us-east-1", US]
    assert {each.refused[0].refusal for each in found.others if each.refused} == {Refusal.LAW}
    assert found.others[-1].refused[0].what == f"{FRANKFURT}/one"


def test_the_cheapest_region_counts_the_copy_and_the_run() -> None:
    prices = {region: price_of(M5, region) for region in RULES["regions"]}
    hours = 100
    found = placed(demand(SF, hours=hours), wishes=["cheapest"])
    costs = {name: 4 * hours * price.price + 100 * 0.02 for name, price in prices.items() if price}
    assert found.chosen is not None
    assert found.chosen.cost == pytest.approx(min(costs.values()))
    assert found.chosen.copy_cost == pytest.approx(2.0)
    assert found.chosen.seconds == pytest.approx(hours * 3600 + 400)


def test_reasons_against_a_region_are_typed_and_hold_the_number_that_decided() -> None:
    quota = placed(demand(SF), quotas={"us-east-1": {M5: 3}, US: {M5: 4}})
    refused = {each.region: each.refused for each in quota.others if each.refused}
    assert refused.keys() == {"us-east-1"}
    assert (refused["us-east-1"][0].refusal, refused["us-east-1"][0].number, refused["us-east-1"][0].limit) == (
        Refusal.QUOTA,
        4,
        3,
    )
    late = placed(demand(SF), deadline=36_100)
    assert late.chosen is None
    assert {(each.refused[0].refusal, each.refused[0].number) for each in late.others} == {(Refusal.DEADLINE, 36_400)}
    score = placed(demand(SF), scores={US: 2}, least_score=5)
    assert {each.region: each.refused[0].refusal for each in score.others if each.refused} == {US: Refusal.SCORE}
    named = placed(demand(SF, region="us-east-1"))
    assert named.chosen is not None
    assert named.chosen.region == "us-east-1"
    assert {each.refused[0].refusal for each in named.others} == {Refusal.OTHER_REGION}


def test_what_is_reserved_costs_nothing_more_and_comes_first() -> None:
    reservations = {"eu-west-1": [{"instance_type": M5, "count": 4}]}
    found = placed(demand(SF), reservations=reservations)
    assert found.chosen is not None
    assert (found.chosen.region, found.chosen.run_cost, found.decided_by) == ("eu-west-1", 0.0, "reserved")
    half = placed(demand(SF, count=8), reservations=reservations, wishes=["cheapest"])
    ireland = next(each for each in (half.chosen, *half.others) if each and each.region == "eu-west-1")
    assert ireland.price == pytest.approx(4 * price_of(M5, "eu-west-1").price)  # type: ignore[union-attr]


def test_spot_is_the_users_own_measured_share_of_the_list_price_for_jobs_on_spot_capacity() -> None:
    spot = {"share": {US: 0.3, "eu-west-1": 0.5}, "as_of": "2026-11-01"}
    on_demand = placed(demand(SF), spot=spot, wishes=["cheapest"])
    assert on_demand == placed(demand(SF), wishes=["cheapest"])
    found = placed(replace(demand(SF), spot=True), spot=spot, wishes=["cheapest"])
    assert found.chosen is not None
    assert found.chosen.price == pytest.approx(0.3 * 4 * price_of(M5, US).price)  # type: ignore[union-attr]
    assert found.chosen.spot_share == 0.3
    assert [(each.region, each.unpriced) for each in found.others] == [
        ("eu-west-1", ()),
        (EU, ("spot",)),
        ("us-east-1", ("spot",)),
    ]


def test_a_region_without_a_price_is_last_where_the_price_decides_and_still_takes_its_own_data() -> None:
    gpu = Demand({"ml.g5.xlarge": 1}, (FRANKFURT,), 3600)
    local = placed(gpu)
    assert local.chosen is not None
    assert (local.chosen.region, local.chosen.cost, local.chosen.unpriced) == (EU, None, ("ml.g5.xlarge",))
    cheap = placed(Demand({"ml.g5.xlarge": 1}, (SF,), 3600), wishes=["cheapest"])
    assert cheap.chosen is not None
    assert cheap.chosen.region == "us-east-1"
    assert [each.region for each in cheap.others] == [US, EU, "eu-west-1"]


def test_where_no_price_is_known_the_cost_of_copies_still_counts() -> None:
    regions = {"regions": [EU, "eu-west-1"], "data": {SF: {"region": "eu-west-1", "gigabytes": 300}}}
    found = placed(Demand({"ml.g5.xlarge": 1}, (SF,), 3600), wishes=["cheapest"], **regions)
    assert found.chosen is not None
    assert (found.chosen.region, found.chosen.cost, found.decided_by) == ("eu-west-1", None, "cheapest")
    assert found.others[0].copy_cost == pytest.approx(6)


def test_data_of_unknown_size_are_not_copied_by_a_plan() -> None:
    found = placed(demand("s3://new/x"), data={"s3://new": {"region": US}})
    assert found.chosen is not None
    assert found.chosen.region == US
    assert {each.refused[0].refusal for each in found.others} == {Refusal.SIZE_UNKNOWN}


def test_a_place_belongs_to_the_longest_data_set_that_holds_it() -> None:
    data = {"s3://b": {"region": US}, "s3://b/eu/": {"region": EU}}
    rules = PlacementRules.model_validate({"data": data})
    found = [rules.data_of(place) for place in ("s3://b/eu", "s3://b/eu/x/", "s3://b/european", "s3://c")]
    assert [each and each.region for each in found] == [EU, EU, US, None]


@pytest.mark.parametrize("place", ["s3://b/", "s3://b", "s3://b/priv", "s3://b/private/x"])
def test_a_place_that_holds_protected_data_is_bound_by_their_law(place: str) -> None:
    data = {"s3://b/private": {"region": "eu-west-1", "stays_in": ["eu-west-1"]}, "s3://b/public": {"region": US}}
    found = placed(demand(place), data=data)
    assert found.chosen is not None
    assert found.chosen.region == "eu-west-1"
    for each in found.others:
        assert each.refused[0].refusal is Refusal.LAW
    assert placed(demand("s3://b"), data={"s3://bucket": {"region": EU, "stays_in": [EU]}}).chosen is not None
    both = {"s3://b/one": {"region": US, "stays_in": [US]}, "s3://b/two": {"region": EU, "stays_in": [EU]}}
    assert placed(demand("s3://b"), data=both).chosen is None


def test_what_a_line_takes_of_a_reservation_the_next_ones_have_no_more() -> None:
    rules = PlacementRules.model_validate({**RULES, "reservations": {US: [{"instance_type": M5, "count": 6}]}})
    placer = Placer(rules)
    first, second, third = (placer.place(demand(SF, region=US)).chosen for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    listed = price_of(M5, US)
    assert listed is not None
    assert [first.price, second.price, third.price] == pytest.approx([0, 2 * listed.price, 4 * listed.price])


REGIONS = st.sampled_from(regions())
SETS = st.fixed_dictionaries(
    {
        "region": REGIONS,
        "gigabytes": st.none() | st.floats(0, 1e5),
        "stays_in": st.lists(REGIONS, max_size=3, unique=True),
    }
)
TYPES = st.sampled_from(["ml.c5.xlarge", M5, "ml.g5.xlarge", "ml.p3.16xlarge", "ml.p4d.24xlarge"])
ANY_RULES = st.fixed_dictionaries(
    {
        "regions": st.lists(REGIONS, max_size=6, unique=True),
        "wishes": st.lists(
            st.sampled_from(["reserved", "data_local", "cheapest", "fastest"]), min_size=1, max_size=4, unique=True
        ),
        "data": st.dictionaries(st.sampled_from(["s3://a", "s3://b", "s3://b/c"]), SETS),
        "deadline": st.none() | st.floats(1, 1e6),
        "quotas": st.dictionaries(REGIONS, st.dictionaries(TYPES, st.integers(0, 8), max_size=2), max_size=3),
        "scores": st.dictionaries(REGIONS, st.integers(1, 10), max_size=3),
        "least_score": st.integers(1, 10),
    }
)
PLACES = ["s3://a/1", "s3://b/c/2", "s3://b", "s3://b/", "s3://z"]
DEMANDS = st.builds(
    Demand,
    hosts=st.dictionaries(TYPES, st.integers(1, 10), min_size=1, max_size=2),
    places=st.lists(
        st.sampled_from(["s3://a/1", "s3://b/c/2", "s3://b", "s3://b/", "s3://z"]), max_size=3, unique=True
    ),
    run_seconds=st.floats(1, 1e5),
    region=st.just("") | REGIONS,
)


@pytest.mark.promise("grid-reference", "no placement breaks law or limits; none costs more than it must")
@settings(max_examples=300, deadline=None)
@given(ANY_RULES, DEMANDS)
def test_no_placement_breaks_law_or_limits_and_none_is_dearer_without_a_reason(given_rules, wanted: Demand) -> None:
    rules = PlacementRules.model_validate(given_rules)
    found = Placer(rules).place(wanted)
    assert found == Placer(rules).place(wanted)
    best = found.chosen
    if best is None:
        assert all(each.refused for each in found.others)
        return
    assert not best.refused
    assert wanted.region in ("", best.region)
    for place in wanted.places:
        data = rules.data_of(place)
        for name, each in given_rules["data"].items():  # by the text of the places alone
            if name.startswith(place.rstrip("/")):
                assert not each["stays_in"] or best.region in each["stays_in"]
        assert data is None or not data.stays_in or best.region in data.stays_in
        assert data is None or data.region == best.region or place in [copy.place for copy in best.copies]
    for kind, count in wanted.hosts.items():
        price = price_of(kind, best.region)
        assert price is None or price.offered is not False
        assert count <= rules.quotas.get(best.region, {}).get(kind, count)
    assert best.seconds <= (rules.deadline or best.seconds)
    earlier = rules.wishes[: [*rules.wishes, "cheapest"].index("cheapest")]
    for other in found.others:
        if not other.refused and other.cost is not None and (best.cost is None or other.cost < best.cost - 1e-6):
            assert earlier, "dearer, and no wish comes before the price"
            assert found.decided_by
    possible = [each for each in found.others if not each.refused]
    assert possible == list(found.others[: len(possible)]), "refused ones come last"


def test_what_needs_a_copy_goes_where_there_is_a_place_for_it_and_lists_of_objects_stay() -> None:
    found = placed(demand(SF), copy_to={US: "s3://oregon/copies"})
    assert found.chosen is not None
    assert found.chosen.region == US
    assert {each.refused[0].refusal for each in found.others} == {Refusal.NO_PLACE}
    manifest = placed(Demand({M5: 1}, (SF,), 3600, "", frozenset((SF,))))
    assert manifest.chosen is None
    assert {each.refused[0].refusal for each in manifest.others} == {Refusal.NOT_COPIED}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"quotas": {"us-eastt-1": {M5: 1}}}, "us-east-1"),
        ({"quotas": {US: {"ml.m5.xlarg": 1}}}, "ml.m5.xlarge"),
        ({"scores": {"us-eastt-1": 3}}, "us-east-1"),
        ({"reservations": {"us-eastt-1": []}}, "us-east-1"),
        ({"reservations": {US: [{"instance_type": "m5.xlarge", "count": 1}]}}, "ml.m5.xlarge"),
        ({"reservations": {US: {M5: 5}}}, "[{instance_type: ml.p4d.24xlarge, count: 2}]"),
        ({"reservations": {US: [M5]}}, "[{instance_type: ml.p4d.24xlarge, count: 2}]"),
        ({"spot": {"share": {"us-eastt-1": 0.5}, "as_of": "2026-11-01"}}, "us-east-1"),
        ({"copy_to": {"us-eastt-1": "s3://b"}}, "us-east-1"),
        ({"copy_to": {US: "/data"}}, "a place in a bucket"),
    ],
)
def test_a_region_or_instance_type_that_is_none_is_refused_wherever_it_stands(rules: dict, said: str) -> None:
    findings = examine(PlacementRules, rules)
    assert findings
    assert said in f"{findings[0].message} {findings[0].hint}"

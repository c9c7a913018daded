"""A rank uses at most 32 of the data hosts: which ones, how ranks spread over them, and what happens when hosts die."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path

import pytest
from feed_data import noise
from feed_servers import open_descriptors, write_secret
from simulated_fleet import Fleet
from simulator import plain
from test_feed_simulated import check

from headrace.feed import DataLoader
from headrace.feed.client.remote_pool import MOST_HOSTS, RemotePool, in_order_of
from headrace.feed.wire.endpoints import Endpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.fleet import measure

HOSTS = [Endpoint(f"algo-{number}", f"tcp://10.0.0.1:{number}") for number in range(1, 1001)]


def take(fleet: Fleet, step: int) -> None:
    """All ranks take the right batch."""
    for plan, batch in zip(fleet.plans, fleet.step(step), strict=True):
        check(batch, plain(fleet.built, plan.batch(0, step)))


@pytest.mark.promise("scale", "a rank uses at most 32 data hosts, and ranks spread over all of them")
def test_a_thousand_ranks_spread_over_a_thousand_hosts_also_when_hosts_die_in_tens() -> None:
    orders = [in_order_of("run", rank, HOSTS) for rank in range(1000)]
    lost = set[Endpoint]()
    for number in range(6):
        lost |= set(HOSTS[number * 100 : number * 100 + 10])
        used = [[host for host in order if host not in lost][:MOST_HOSTS] for order in orders]
        counts = Counter(host for hosts in used for host in hosts)
        mean = 1000 * MOST_HOSTS / (1000 - len(lost))
        assert len(counts) == 1000 - len(lost), "every host is used"
        assert mean / 3 < min(counts.values()) <= max(counts.values()) < 1.8 * mean
    kept = [set(order[:MOST_HOSTS]) & set(hosts) for order, hosts in zip(orders, used, strict=True)]
    assert kept == [set(order[:MOST_HOSTS]) - lost for order in orders], "what lives of the first choice stays"


def test_a_rank_uses_its_own_host_first_and_the_order_does_not_depend_on_the_list() -> None:
    own = Endpoint("algo-7", "unix:@feed")
    hosts = [*HOSTS[:6], *HOSTS[7:], own]
    order = in_order_of("run", 3, hosts)
    assert order[0] is own
    assert order == in_order_of("run", 3, hosts[::-1])
    assert order != in_order_of("run", 4, hosts)
    assert order != in_order_of("another run", 3, hosts)


@pytest.mark.parametrize("divided", [False, True])
def test_ranks_of_a_job_have_orders_of_their_own_whether_data_are_divided_among_them_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, divided: bool
) -> None:
    write_secret(tmp_path / "secret")
    orders = []
    for job, rank in (("1", 0), ("1", 1), ("2", 0)):
        for name, setting in {"MASTER_ADDR": "h", "MASTER_PORT": job, "RANK": str(rank), "WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, setting)
        part = {"rank": rank, "world_size": 2, "seed": 1} if divided else {}
        options = {"workers": "tcp://127.0.0.1:1", "secret_file": str(tmp_path / "secret"), **part}
        with DataLoader(noise(), batch_size=4, **options) as loader:
            pool = loader._worker_pool()
        assert isinstance(pool, RemotePool)
        orders.append(in_order_of(pool._job, pool._identity[1], HOSTS)[:MOST_HOSTS])
    assert all(set(one) != set(other) for one, other in itertools.combinations(orders, 2))
    assert (orders[1][0] in orders[0]) is divided, "those that have a plan compare it"


def test_neighbours_have_a_host_in_common_that_compares_their_plans() -> None:
    orders = [in_order_of("run", rank, HOSTS) for rank in range(200)]
    assert all(other[0] in order[:MOST_HOSTS] for order, other in itertools.pairwise(orders))


@pytest.mark.promise("scale", "a rank uses at most 32 data hosts, and ranks spread over all of them")
def test_hosts_that_die_in_tens_are_replaced_and_come_back_and_no_batch_changes(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 6, 100, steps=40)
    with fleet.training(memory=6 << 16):
        take(fleet, 0)
        first = [fleet.used(rank) for rank in range(6)]
        assert [len(hosts) for hosts in first] == [MOST_HOSTS] * 6
        lost: list[str] = []
        for step in range(1, 25):
            if step % 6 == 1:
                dying = sorted(first[0] - set(lost))[:10] if step < 18 else []
                fleet.kill(dying)
                lost += dying
            take(fleet, step)
        assert fleet.pools[0].hosts == 100 - len(lost), "rank 0 used them all, and counts those that it does not use"
        for rank in range(6):
            assert not fleet.used(rank) & set(lost)
            assert len(fleet.used(rank)) == MOST_HOSTS
            assert fleet.used(rank) >= first[rank] - set(lost)
        fleet.revive(lost)
        for step in range(25, 40):
            fleet.run(1.0)
            take(fleet, step)
        assert [fleet.used(rank) for rank in range(6)] == first
        assert fleet.summary()["connections"] == 6 * MOST_HOSTS
        assert max(fleet.most.values()) <= MOST_HOSTS + len(lost)


def test_a_fleet_of_at_most_32_hosts_is_used_whole(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 2, MOST_HOSTS)
    with fleet.training():
        take(fleet, 0)
        fleet.kill(list(fleet.hosts)[:10])
        take(fleet, 1)
        fleet.run(2.0)
        take(fleet, 2)
        assert fleet.used(0) == fleet.used(1) == set(list(fleet.hosts)[10:])


@pytest.mark.promise("scale", "where hosts hold different shards, a rank uses all of them")
@pytest.mark.parametrize("apart", [False, True])
def test_all_hosts_are_asked_what_they_hold_and_all_are_used_where_they_hold_different_shards(
    tmp_path: Path, apart: bool
) -> None:
    steps, hosts = 12, 48
    rows = 8 * steps // hosts

    def shards(host: int) -> list[tuple[str, int]]:
        return [(f"{number:02}", rows) for number in ([host] if apart else range(hosts))]

    fleet = Fleet(tmp_path, 2, hosts, shards=shards, steps=steps)
    with fleet.training():
        fleet.step(0)
        assert max(fleet.most.values()) == hosts
        fleet.run(1.0)
        fleet.step(1)
        fleet.step(2)
        for rank in range(2):
            assert len(fleet.used(rank)) == (hosts if apart else MOST_HOSTS)
        assert fleet.summary()["connections"] == 2 * len(fleet.used(0))


def test_the_measurement_of_a_fleet_loses_hosts_and_needs_no_descriptor() -> None:
    before = open_descriptors()
    row = measure(20, 100, steps=36, load=0.5, window=4)
    assert (row["connections"], row["connections_after"], row["died"]) == (640, 640, 10)
    assert row["descriptors"] == before
    assert row["dying_wait_most_ms"] < 1000

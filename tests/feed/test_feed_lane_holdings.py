"""Lanes over hosts that hold different shards: every row once, whoever holds them, and whatever is killed."""

from __future__ import annotations

import importlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK
from feed_data import flat
from feed_servers import Server, leave_out_torch
from feed_shards import as_it_is, counted, fill_lines, kept, mixed, often, packed, tokens_of, wanted
from simulator import a_worker

from headrace import feed
from headrace.errors import PipelineError, PositionError, WorkersLost
from headrace.feed import DataLoader
from headrace.feed.client.lane_homes import Holdings, LaneHomes, deal
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.plan.lane_pass import LaneCursor, LaneDraw, Lanes
from patience import allowed

pytestmark = pytest.mark.usefixtures("without_torch")
FILES = {
    "a0": range(0, 30),
    "b1": range(30, 83),
    "c1": range(83, 90),
    "d0": range(90, 134),
    "e0": range(134, 150),
    "f1": range(0),
}
OPTIONS: dict[str, Any] = {
    "batch_size": 4, "shuffle": True, "seed": 3, "num_shards": 8, "collate_fn": feed.stack_arrays
}  # fmt: skip
LANES = ("feed-lanes-ranks.md", "## Hosts with different shards")
STANDING = {
    "ac": ("a0", "c1"), "bd": ("b1", "d0"), "bd again": ("b1", "d0"), "e": ("e0", "f1"), "whole": tuple(FILES),
    "whole again": tuple(FILES), "abc": ("a0", "b1", "c1"),
}  # fmt: skip
Hosts = dict[str, Server]
HostsOf = Callable[..., list[Server]]


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Hosts by what they hold, for the tests that leave them as they are. "bd again" has one executor."""
    root, servers = tmp_path_factory.mktemp("standing"), {}
    for name, held in STANDING.items():
        with pytest.MonkeyPatch.context() as patch:
            here = fill_lines(root / f"of {name}", {file: FILES[file] for file in held})
            patch.setenv("SM_CHANNEL_TRAINING", str(here))
            leave_out_torch(patch)
            servers[name] = Server(root, name.replace(" ", "-"), executors=1 if name == "bd again" else 2)
    for server in servers.values():
        server.wait_ready()
    yield servers
    for server in servers.values():
        server.stop()


def documented_code(page: str, section: str) -> list[str]:
    """The first two blocks of Python in and behind a section of a page of the documentation."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text().split(f"{section}\n")[1]
    return [block.split("```")[0] for block in text.split("```python\n")[1:3]]


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts with torch that hold different files and have the code that the documentation shows."""
    root, servers = tmp_path_factory.mktemp("documented"), {}
    (root / "code").mkdir()
    head = "from headrace import feed\n\ndef is_good(row):\n    return row % 3\n\n"
    (root / "code/docs_lanes.py").write_text(head + documented_code(*LANES)[0])
    head = "from pathlib import Path\nfrom torch.utils.data import Dataset\nfrom headrace import feed\n"
    (root / "code/docs_rows.py").write_text(
        head + documented_code("feed-workers.md", "## Hosts with different files")[0]
    )
    for name, held in (("host-0", ("a0", "c1")), ("host-1", ("b1", "d0"))):
        with pytest.MonkeyPatch.context() as patch:
            files = {file: FILES[file] for file in held}
            patch.setenv("SM_CHANNEL_TRAINING", str(fill_lines(root / name, files)))
            patch.setenv("SM_CHANNEL_ROWS", str(fill_lines(root / f"rows of {name}", files)))
            servers[name] = Server(root, name, arguments=["--code", str(root / "code")])
    for server in servers.values():
        server.wait_ready()
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def hosts(tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> HostsOf:
    """Starts feed servers of this test whose training channels hold these files."""

    def start(**held: tuple[str, ...]) -> list[Server]:
        servers = []
        for name, files in held.items():
            here = fill_lines(tmp_path / name, {file: FILES[file] for file in files})
            monkeypatch.setenv("SM_CHANNEL_TRAINING", str(here))
            servers.append(own_server(name))
        monkeypatch.delenv("SM_CHANNEL_TRAINING")
        return servers

    return start


def served(servers: list[Server], dataset: Any = None, **options: Any) -> DataLoader:
    """A loader over servers by their Unix sockets, which costs no receiver process (0.3 CPU seconds)."""
    workers = ",".join(server.unix_address for server in servers)
    settings = OPTIONS | {"workers": workers, "secret_file": str(servers[0].secret)} | options
    return DataLoader(kept() if dataset is None else dataset, **settings)


def by_tcp(servers: list[Server], dataset: Any = None, **options: Any) -> DataLoader:
    return served(servers, dataset, **{"workers": ",".join(server.tcp for server in servers)} | options)


def at(standing: Hosts, *names: str) -> list[Server]:
    return [standing[name] for name in names]


def bits(loader: DataLoader) -> list[bytes]:
    with loader:
        return [flat(batch) for batch in loader]


def outputs(batches: Any) -> Counter[tuple[int, int]]:
    return Counter(
        output for batch in batches for output in zip(batch["value"].tolist(), batch["part"].tolist(), strict=True)
    )


EVERY = Counter(
    (row["value"], row["part"])
    for values in FILES.values()
    for value in values
    if wanted({"value": value})
    for row in often({"value": value})
)


# Which lanes are read from what


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 7, 8, 12, 24, 30, 36, 60, 64, 96])
def test_every_holding_has_lanes_in_proportion_and_every_rank_its_part_of_each(lanes: int) -> None:
    chance = random.Random(lanes)
    for _ in range(20):
        rows = [chance.choice([0, 100, 1000, chance.randrange(5000)]) for _ in range(chance.randint(1, min(lanes, 9)))]
        dealt = deal(rows, lanes)
        assert dealt == deal(rows, lanes)
        counts = [dealt.count(number) for number in range(len(rows))]
        assert len(dealt) == lanes
        assert min(counts) >= 1
        shares = [lanes * max(1, each) / sum(max(1, other) for other in rows) for each in rows]
        given = sum(max(0.0, 1 - share) for share in shares)  # to small holdings, that each may have a lane
        assert all(abs(count - share) <= 2 + given for count, share in zip(counts, shares, strict=True))
        for ranks in range(1, lanes + 1):
            for rank in range(ranks) if lanes % ranks == 0 else ():
                part = Counter(dealt[rank::ranks])
                assert all(abs(part[number] - counts[number] / ranks) < 3 for number in range(len(rows)))


def test_equal_holdings_are_dealt_evenly_to_any_ranks_that_can_be() -> None:
    assert deal([5, 5], 4) == [0, 1, 1, 0]
    for ranks in (1, 2, 4, 8):
        dealt = deal([70, 70], 16)
        assert all(sorted(Counter(dealt[rank::ranks]).values()) == [8 // ranks] * 2 for rank in range(ranks))


def held(*shards: tuple[str, int], digest: str = "d") -> tuple[list[tuple[str, int]], str]:
    return list(shards), digest


def holdings(lanes: int, *announced: tuple[list[tuple[str, int]], str]) -> Holdings:
    found = Holdings(lanes)
    for number, (shards, digest) in enumerate(announced, 1):
        assert found.add(WorkerNumber(number), f"host-{number}", shards, digest)
    found.deal()
    return found


def test_who_reads_which_part_does_not_depend_on_the_order_in_which_hosts_come() -> None:
    one, other = held(("a", 3), ("d", 1), digest="1"), held(("b", 8), digest="2")
    found, turned = holdings(6, one, other, one), holdings(6, other, one)
    workers = {WorkerNumber(number): a_worker(number) for number in (1, 2, 3)}
    assert found.digest == turned.digest != holdings(6, one).digest
    for lane in range(6):
        assert found.share(lane) == turned.share(lane)
        readers = set(found.readers(lane, workers))
        assert readers in ({1, 3}, {2})
        assert set(turned.readers(lane, workers)) == ({2} if readers == {1, 3} else {1})
    parts = {found.share(lane) for lane in range(6) if set(found.readers(lane, workers)) == {2}}
    assert parts == {(part, 4) for part in range(4)}
    assert holdings(6, one, held(("b", 8), digest="3")).digest != found.digest, "the same shards with other data"
    assert not found.add(WorkerNumber(4), "late", *held(("b", 8), digest="3"))
    found.remove(WorkerNumber(2))
    assert {found.lost(lane) for lane in range(6)} == {True, False}
    assert found.add(WorkerNumber(7), "late", *other)
    assert not any(found.lost(lane) for lane in range(6))


def test_no_worker_of_a_holding_takes_more_than_its_share_also_under_a_number_that_another_had() -> None:
    one, other = held(("a", 8)), held(("b", 8))
    found = holdings(8, one, other, one)
    homes = LaneHomes(found)
    homes.executors = 6
    workers = {WorkerNumber(number): a_worker(number, f"host-{number}", 2) for number in (1, 2, 3)}
    taken: Counter[int] = Counter()
    for lane in range(8):
        able = homes.able(lane, workers)
        assert able.items() <= found.readers(lane, workers).items()
        homes.settle(lane, min(able))
        taken[min(able)] += 1
    assert taken == {1: 2, 3: 2, 2: 4}
    for gone in (1, 2):  # the number of the second goes to a host of the other holding
        found.remove(WorkerNumber(gone))
        del workers[WorkerNumber(gone)]
    assert found.add(WorkerNumber(2), "host-4", *one)
    assert found.add(WorkerNumber(4), "host-5", *other)
    workers |= {WorkerNumber(number): a_worker(number, f"host-{number + 1}", 2) for number in (2, 4)}
    taken.clear()
    for lane in range(8):
        able = homes.able(lane, workers)
        assert able.items() <= found.readers(lane, workers).items()
        homes.settle(lane, min(able))
        taken[min(able)] += 1
    assert taken == {2: 2, 3: 2, 4: 4}


def test_a_late_answer_is_asked_for_a_second_time_only_of_a_host_that_holds_the_same() -> None:
    one, other = held(("a", 8)), held(("b", 8))
    everywhere, apart, lanes = LaneHomes(), LaneHomes(holdings(4, one, other, one)), Lanes(4)
    workers = {WorkerNumber(number): a_worker(number, f"host-{number}", 1) for number in (1, 2, 3)}
    near, far = (LaneDraw(LaneCursor(lane=0, asked=4), lanes, first, 4) for first in (0, 400))
    assert set(everywhere.quick(near, workers)) == {1, 2, 3}
    assert set(apart.quick(near, workers)) == {1, 3}
    assert not apart.quick(far, workers)


# Over real feed servers


@pytest.mark.promise("feed-lanes-ranks", "data without a count: hosts may hold different shards; every row comes once")
@pytest.mark.parametrize("shuffle", [True, False, feed.Window(8, 4)])
def test_every_row_comes_once_and_only_what_lies_together_decides_the_batches(standing: Hosts, shuffle: Any) -> None:
    with by_tcp(at(standing, "ac", "bd", "e"), shuffle=shuffle, verify=1) as loader:
        batches = list(loader)
        assert outputs(batches) == EVERY
        assert {lane for batch in batches for lane in batch["lane"].tolist()} == set(range(8))
        found = [flat(batch) for batch in batches]
        assert loader.stats()["purity_failures"] == 0
        assert loader.stats()["slices_verified"] > 0
        assert set(loader.stats()["hosts"]) == {"ac", "bd", "e"}
    assert bits(served(at(standing, "e", "bd again", "ac"), shuffle=shuffle)) == found
    assert bits(served(at(standing, "bd again", "ac", "bd", "e"), shuffle=shuffle, prefetch_factor=1)) == found
    own = ",".join([standing["bd"].unix_address, standing["ac"].tcp, standing["e"].tcp])
    assert bits(served(at(standing, "bd"), shuffle=shuffle, workers=own)) == found


def test_where_every_host_holds_all_it_is_as_on_a_machine_that_does(
    standing: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(standing["whole"].secret.parent / "of whole"))
    states, found = [], []
    servers = at(standing, "whole", "whole again")
    for loader in (DataLoader(kept(), **OPTIONS), served(servers), served(servers[:1])):
        with loader:
            batches = iter(loader)
            begun = [flat(next(batches)) for _ in range(7)]
            states.append(loader.state_dict())
            found.append([*begun, *map(flat, batches)])
    assert found[0] == found[1] == found[2]
    assert states[0]["shards"] == states[1]["shards"] == states[2]["shards"] != ""
    assert states[0]["lanes"]["taken"] == states[1]["lanes"]["taken"]
    with served(at(standing, "ac", "bd")) as loader:
        loader.load_state_dict(states[0])
        with pytest.raises(PositionError, match=r"shards=(.|\n)* in 2 parts(.|\n)*lie together on a host"):
            next(iter(loader))


def test_documents_are_packed_and_sources_mixed_by_what_lies_together(standing: Hosts) -> None:
    with served(at(standing, "ac", "bd"), packed(), batch_size=None, collate_fn=as_it_is) as loader:
        came = Counter(token for sequence in loader for token in sequence["tokens"].tolist() if token)
    there = [value for name in ("a0", "b1", "c1", "d0") for value in FILES[name]]
    assert came == Counter(token for value in there for token in tokens_of(value))
    for whole in (True, False):
        with served(at(standing, "ac", "bd"), mixed(whole)) as loader:
            values = {value for batch in loader for value in batch.tolist()}
            assert values == {value for value in there if value % 5}
        with (
            served(at(standing, "ac", "e"), mixed(whole), num_shards=2) as loader,
            pytest.raises(PipelineError, match=r"source '1' has no rows here(.|\n)*rows of every source"),
        ):
            list(loader)


@pytest.mark.promise("feed-lanes-ranks", "data without a count: one of two hosts with the same shards may be killed")
def test_of_two_hosts_that_hold_the_same_one_may_be_killed(standing: Hosts, hosts: HostsOf) -> None:
    expected = bits(served(at(standing, "ac", "bd")))
    [doomed] = hosts(doomed=("b1", "d0"))
    with by_tcp([doomed, *at(standing, "ac", "bd again")]) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(flat(batch))
            if number == 5:
                assert loader.stats()["hosts"]["doomed"]["rows"] > 0
                doomed.kill()
        assert found == expected
        assert loader.stats()["workers_lost"] == 1


@pytest.mark.promise("feed-lanes-ranks", "data without a count: one of two hosts with the same shards may be killed")
@pytest.mark.usefixtures("given_up_soon")
def test_what_only_a_killed_host_held_is_named(standing: Hosts, hosts: HostsOf) -> None:
    [doomed] = hosts(doomed=("b1", "d0"))
    with by_tcp([doomed, standing["ac"]], prefetch_factor=1) as loader:
        batches = iter(loader)
        next(batches)
        doomed.kill()
        message = r"data are lost: 97 samples of 'b1.jsonl', 'd0.jsonl' were only on doomed; .*\nhint: start"
        with pytest.raises(WorkersLost, match=message):
            for _ in batches:
                pass


def slowly(batches: Iterator[Any], told: pytest.WarningsRecorder, seconds: float) -> Iterator[Any]:
    """Asks for a batch only so often until there is a warning: a loader looks for hosts when it is asked for one, and
    must not have all of them before."""
    for batch in batches:
        yield batch
        time.sleep(0 if told.list else seconds)


def rows_of_refused(loader: DataLoader, told: pytest.WarningsRecorder) -> int | None:
    """Returns the rows of the host that came back once it was refused: what it had answered before has come by then."""
    if not any("came late" in str(warning.message) for warning in told):
        return None
    return loader.stats()["hosts"].get("back", {"rows": 0})["rows"]


def test_a_host_that_comes_back_is_used_if_it_holds_what_lies_together_and_else_not(
    standing: Hosts, hosts: HostsOf, tmp_path: Path
) -> None:
    expected = bits(served(at(standing, "ac", "bd")))
    [back] = hosts(back=("b1", "d0"))
    where = {"SM_CHANNEL_TRAINING": str(tmp_path / "back")}
    with by_tcp([standing["ac"], back]) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(flat(batch))
            if number == 2:
                back.kill()
                back.restart(**where)
        assert found == expected
    fill_lines(tmp_path / "other", {"b1": FILES["b1"]})
    with by_tcp([*at(standing, "ac", "bd"), back], kept(0.01), prefetch_factor=1) as loader:
        batches = iter(loader)
        found, pause = [flat(next(batches))], allowed(8) / len(expected)
        back.kill()
        back.restart(SM_CHANNEL_TRAINING=str(tmp_path / "other"))
        with pytest.warns(UserWarning, match="back came late and does not hold the same data") as told:
            rest = [(flat(batch), rows_of_refused(loader, told)) for batch in slowly(batches, told, pause)]
        assert found + [batch for batch, _ in rest] == expected
        assert len({rows for _, rows in rest if rows is not None}) == 1


@pytest.mark.promise(
    "feed-lanes-ranks", "data without a count on hosts with different shards: resume is exact or refused"
)
def test_it_goes_on_at_any_step_and_not_where_other_shards_lie_together(standing: Hosts) -> None:
    servers = at(standing, "ac", "bd", "e")
    expected = bits(served(servers))
    states = []
    with served(servers) as loader:
        for _ in loader:
            states.append(json.loads(json.dumps(loader.state_dict())))
    for step in (1, 6, len(expected) // 2, len(expected) - 1):
        with served(at(standing, "bd again", "e", "ac")) as loader:
            loader.load_state_dict(states[step - 1])
            assert [flat(batch) for batch in loader] == expected[step:]
    tokenless = states[9] | {"lanes": states[9]["lanes"] | {"tokens": []}}
    with served(at(standing, "bd", "bd again", "e", "ac")) as loader:
        loader.load_state_dict(tokenless)
        assert [flat(batch) for batch in loader] == expected[10:]
    for names in (("ac", "bd"), ("whole",)):
        with served(at(standing, *names)) as loader:
            loader.load_state_dict(states[9])
            with pytest.raises(PositionError, match=r"saved with shards='\w+ in 3 parts', the loader has shards='"):
                next(iter(loader))


def test_ranks_share_the_lanes_of_all_hosts_and_another_number_of_them_goes_on(standing: Hosts) -> None:
    servers = at(standing, "ac", "bd")
    whole = sum((EVERY_OF[name] for name in ("a0", "b1", "c1", "d0")), Counter[tuple[int, int]]())
    shared = {"world_size": 2, "uneven": True, "name": "shared"}
    first, second = (served(servers, **shared, rank=rank) for rank in range(2))
    with first, second:
        passes = [iter(first), iter(second)]
        begun = [next(batches) for _ in range(5) for batches in passes]
        merged = feed.merge_states([first.state_dict(), second.state_dict()])
        rest = [batch for batches in passes for batch in batches]
        assert outputs(begun + rest) == whole
        assert set(first.stats()["hosts"]) == {"ac", "bd"}
    with served(at(standing, "bd again", "ac"), name="alone", uneven=True) as loader:
        loader.load_state_dict(merged)
        assert outputs(begun) + outputs(loader) == whole
    slots: dict[str, Any] = {"batch_size": 1, "global_batch_size": 8, "drop_last": False, "uneven": True}
    with served(servers, **slots, rank=0, world_size=1, name="one") as loader:
        expected = [batch["value"].tolist() for batch in loader]
    ranks = [served(servers, **slots, rank=rank, world_size=2, name="two") for rank in range(2)]
    with ranks[0], ranks[1]:
        parts = [[batch["value"].tolist() for batch in loader] for loader in ranks]
    steps = min(map(len, parts))
    assert [sorted(one + two) for one, two in zip(*(part[:steps] for part in parts), strict=True)] == [
        sorted(batch) for batch in expected[:steps]
    ]
    assert outputs([]) + Counter(itertools.chain(*expected)) == Counter(itertools.chain(*parts[0], *parts[1]))


EVERY_OF = {name: Counter({key: 1 for key in EVERY if key[0] in values}) for name, values in FILES.items()}


@pytest.mark.usefixtures("given_up_soon")
def test_a_host_that_computes_differently_is_left_out_and_the_data_that_it_alone_holds_are_not(
    standing: Hosts, documented: Hosts
) -> None:
    other = documented["host-1"]  # it has torch
    told = "is not used, it computes with other libraries"
    for named, lanes in ((kept, 8), (counted, None)):
        options: dict[str, Any] = {"numerics": "refuse", "num_shards": lanes}
        expected = bits(served(at(standing, "bd"), named(), **options))
        with served([standing["bd"], other], named(), **options) as loader, pytest.warns(UserWarning, match=told):
            assert [flat(batch) for batch in loader] == expected
        with (
            served([standing["ac"], other], named(), **options) as loader,
            pytest.warns(UserWarning, match=told),
            pytest.raises(WorkersLost, match=r"lost: \d+ samples of '\w+.jsonl', '\w+.jsonl' were only on"),
        ):
            list(loader)


def test_ranks_that_see_other_shards_lie_together_are_told(standing: Hosts) -> None:
    options = {"world_size": 2, "uneven": True, "name": "spread"}
    with (
        served(at(standing, "ac", "bd"), **options, rank=0) as first,
        served(at(standing, "ac"), **options, rank=1) as second,
    ):
        next(iter(first))
        with pytest.raises(PipelineError, match="rank 1 and rank 0 have different plans"):
            next(iter(second))


@pytest.mark.promise("feed-lanes-ranks", "data without a count: hosts that share only some shards are refused")
def test_what_cannot_be_read_in_lanes_is_refused_with_what_to_do(standing: Hosts, hosts: HostsOf) -> None:
    with (
        served(at(standing, "abc", "bd")) as loader,
        pytest.raises(PipelineError, match=r"abc and bd both hold the shard 'b1.jsonl'(.|\n)*ShardedByS3Key"),
    ):
        next(iter(loader))
    with (
        served(at(standing, "ac", "bd", "e"), num_shards=2) as loader,
        pytest.raises(
            PipelineError, match=r"3 different sets of shards, and the loader has 2 lanes(.|\n)*num_shards=3"
        ),
    ):
        next(iter(loader))
    [other] = hosts(other=("b1", "d0"))
    text = (other.secret.parent / "other" / "b1.jsonl").read_text()
    (other.secret.parent / "other" / "b1.jsonl").write_text(text.replace("31\n", "99\n"))
    with (
        served([standing["bd"], other]) as loader,
        pytest.raises(PipelineError, match=r"bd and other hold shards of the same names and sizes, and not the same"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("named", [mixed, *([kept, packed] if SOAK else [])])
def test_a_shard_that_is_added_to_a_host_changes_nothing_and_one_that_is_taken_away_is_named(
    named: Any, hosts: HostsOf, tmp_path: Path
) -> None:
    servers = hosts(first=("a0", "b1"), second=("c1", "d0"))
    with served(servers, named()) as first:  # as long as it has its pipeline open, others share that
        expected = [flat(batch) for batch in first]
        fill_lines(tmp_path / "new", {"a1": range(500, 530), "e0": FILES["e0"]})
        for new in (tmp_path / "new").iterdir():
            new.rename(tmp_path / "first" / new.name)
        for executor in servers[0].executors():
            executor.kill()
        assert bits(served(servers, named())) == expected
        (tmp_path / "first" / "b1.jsonl").unlink()
        for executor in servers[0].executors():
            executor.kill()
        with (
            served(servers, named()) as loader,
            pytest.raises(PipelineError, match=r"the shard '(1/)?b1.jsonl' is not there any more"),
        ):
            list(loader)
    assert bits(served(servers, named())) not in ([], expected), "the next one reads what is there now"


def test_the_examples_in_the_docs_run_on_hosts_that_hold_other_files(
    documented: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(documented["host-0"].secret.parent / "code")
    monkeypatch.setenv("HEADRACE_FEED", ",".join(server.tcp for server in documented.values()))
    monkeypatch.setenv("HEADRACE_FEED_SECRET_FILE", str(documented["host-0"].secret))
    with DataLoader(importlib.import_module("docs_rows").lines("rows"), batch_size=8, shuffle=True, seed=3) as loader:
        assert sorted(loaded(loader)) == list(range(134))
    names: dict[str, Any] = {"feed": feed, "good": importlib.import_module("docs_lanes").good}
    exec(documented_code(*LANES)[1], names)
    with names["loader"] as loader:
        assert sorted(loaded(loader)) == [value for value in range(134) if value % 3]
        assert set(loader.stats()["hosts"]) == {"host-0", "host-1"}


def loaded(loader: DataLoader) -> list[int]:
    return [value for batch in loader for value in batch.tolist()]

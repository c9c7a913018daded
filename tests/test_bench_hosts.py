"""bench.hosts: its simulated hosts start, serve and end as the authority orders, over real connections."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.hosts import DATA, TRAIN, counted, fail, make_plan, prepare


def test_half_of_the_hosts_train_and_the_other_half_serves(tmp_path: Path) -> None:
    groups = {group.name: group for group in make_plan(5, tmp_path).groups}
    assert (groups[TRAIN].hosts, groups[DATA].hosts) == (("algo-1", "algo-2", "algo-3"), ("algo-4", "algo-5"))
    assert (groups[TRAIN].feed_executors, groups[DATA].entry_point) == (0, False)


def test_a_job_of_simulated_hosts_starts_on_the_real_authority_and_loses_a_data_host_and_its_failure_reaches_all(
    tmp_path: Path,
) -> None:
    plan = make_plan(4, tmp_path)
    with counted() as received:
        row = asyncio.run(fail(plan, prepare(plan, tmp_path), tmp_path))
    assert row.keys() == {f"{what}{unit}" for what in ("lost", "stop", "failure") for unit in ("_s", "_cpu_s")}
    assert row["stop_s"] <= row["failure_s"]
    assert received[0] > 0
    events = (tmp_path / "events" / "supervisor.jsonl").read_text()
    assert events.count('"host_registered"') == 4
    assert '"exit_code":1' in events
    assert events.count('"host_lost"') == 1

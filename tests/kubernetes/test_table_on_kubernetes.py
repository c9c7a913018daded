"""The table of engines on a real cluster, row by row. What was seen is kept as JSON: see `table_record`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_table import FAULTS, JOBS
from engine_table_kubernetes import KubernetesNodes
from engine_table_platform import Platform
from engine_table_play import Play, play_fault, play_job
from table_record import Row, TableRecord
from test_engine_table import job_row, local_losses, python_for

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def opened() -> Iterator[Platform]:
    with KubernetesNodes().open(Path(tempfile.mkdtemp(prefix="hk-"))) as platform:
        yield platform


@pytest.fixture
def platform(opened: Platform) -> Iterator[Platform]:
    """The platform as it was, whatever a test has done to it."""
    yield opened
    opened.mend()


@pytest.fixture(scope="module")
def record() -> Iterator[TableRecord]:
    made = TableRecord()
    yield made
    made.write()


@pytest.fixture
def row(record: TableRecord, platform: Platform, monkeypatch: pytest.MonkeyPatch) -> Iterator[Row]:
    """What is kept of this row; the play tells it which run it was and when the fault came."""
    made = Row(platform)
    monkeypatch.setattr(Play, "strike", made.watched(Play.strike))
    monkeypatch.setattr(Play, "wait", made.ended(Play.wait))
    yield made
    record.add(made)


@pytest.mark.parametrize("name", [each.name for each in JOBS])
def test_a_job_is_completed_with_the_losses_of_the_local_run(platform: Platform, row: Row, name: str) -> None:
    job = job_row(name)
    python = python_for(job.needs)
    row.name = name
    with ThreadPoolExecutor(1) as beside:
        alone = beside.submit(local_losses, name) if job.losses else None
        losses = play_job(job, platform, f"job-{JOBS.index(job)}", python)
        assert bool(losses) == bool(job.losses)
        if alone is not None:
            row.same_losses = losses == alone.result()
            assert row.same_losses
    row.holds = True


@pytest.mark.parametrize("name", [each.name for each in FAULTS])
def test_a_fault_has_its_end_and_leaves_nothing(platform: Platform, row: Row, name: str) -> None:
    (fault,) = (each for each in FAULTS if each.name == name)
    row.name = name
    play_fault(fault, platform, f"fault-{FAULTS.index(fault)}")
    platform.mend()  # on the nodes that were lost, too
    row.holds = True

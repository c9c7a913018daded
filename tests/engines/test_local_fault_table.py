"""Every row of the fault table holds: the run ends in time, with the right first cause and exit code, and nothing left.

Each row is played in a box of its own. Where tests run one after the other, all rows are played before the first test,
many side by side, and a test looks at one of them. In the long run (`make soak`) every row is played 20 times, and so
are the rows that a short run leaves out.

    python -m pytest tests/engines/test_local_fault_table.py -k "cut off"
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fault_box
import pytest
from effort import SOAK
from fault_table import ROWS

from needs import lacking

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "20" if SOAK else "1"))
SIDE_BY_SIDE = 3 * min(4, os.cpu_count() or 1)  # the rows wait most of the time
SECONDS = 150.0  # for one row, its job and its box

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.needs("root", "boxes"),
    pytest.mark.timeout(3 * 3600 if SOAK else 900),
]

Played = list[Mapping[str, object]]


_seen: dict[str, list[Mapping[str, object]]] = {}


@pytest.fixture
def played(name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """What was seen of a row, a list for all its rounds."""
    if name not in _seen:
        others = () if "PYTEST_XDIST_WORKER" in os.environ else request.session.items
        wanted = {name: None} | {
            item.callspec.params["name"]: None
            for item in others
            if item.path == Path(__file__)
            and hasattr(item, "callspec")
            and all(lacking(*marker.args) is None for marker in item.iter_markers("needs"))
        }
        _seen.update(_play(list(wanted), tmp_path_factory))
    return _seen[name]


def _play(wanted: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Mapping[str, object]]]:
    """Plays rows, all rounds of each. Returns what was seen."""
    plays = [name for _ in range(ROUNDS) for name in wanted]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        folders = [tmp_path_factory.mktemp("box") for _ in plays]
        seen = list(pool.map(lambda name, folder: fault_box.play(name, folder, SECONDS), plays, folders))
    return {name: [each for play, each in zip(plays, seen, strict=True) if play == name] for name in wanted}


@pytest.mark.promise("engines", "who answers for a run, on local")
@pytest.mark.promise("engines", "the submitting process is killed, on local")
@pytest.mark.promise("faults", "every fault of the table ends in its time, with cause and exit code; nothing is left")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(row.name, marks=pytest.mark.needs(*row.job.needs, *row.needs))
        for row in ROWS.values()
        if SOAK or not row.soak
    ],
)
def test_the_row_holds(played: Played, name: str) -> None:
    for number, seen in enumerate(played, 1):
        print(f"round {number}: {seen.get('seconds')} s, {seen.get('status')}, {seen.get('cause')}")
        for each in seen.get("shown", ()):
            print(each)
    wrong = [f"round {number}: {each}" for number, seen in enumerate(played, 1) for each in seen["wrong"]]
    assert not wrong, "\n".join(wrong)

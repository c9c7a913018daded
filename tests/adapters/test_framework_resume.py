"""Exactly once in every framework: trainings resumed from its own checkpoints see what an undisturbed one does.

The table is generated, see `resumed_trainings.cases`: framework x kind of data x place of the checkpoint x resumed once
or twice x limits x workers: every value in `make test`, every pair for a loop of one's own, all rows under
HEADRACE_SOAK. Rows, order and random
numbers are compared. What is refused is refused as docs/frameworks-resume.md says.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK
from resume_data import KINDS, ROWS, dataset_of, seen_in
from resumed_trainings import FRAMEWORKS, MORE, cases

from headrace import feed
from needs import require

HERE = Path(__file__).parent
REFUSED = {"trainer": {"lanes": "TypeError: headrace takes map-style datasets"}}

LONGEST = 3000 if SOAK else 600
Results = dict[str, dict[str, str]]

pytestmark = pytest.mark.timeout(LONGEST + 60)


@pytest.fixture(scope="module")
def trained_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """Trains in the frameworks of a library, in one process. Returns what was wrong with each case."""
    return functools.cache(lambda library: results(library, tmp_path_factory.mktemp(library)))


def results(library: str, folder: Path) -> Results:
    frameworks = [name for name in FRAMEWORKS if (name == "keras") == (library == "tensorflow")]
    paths = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parent / "proof")])
    environment = dict(os.environ) | {
        "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true", "TF_CPP_MIN_LOG_LEVEL": "3",
    }  # fmt: skip
    command = [sys.executable, str(HERE / "resumed_trainings.py"), str(folder), *frameworks]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    problems: Results = {}
    for framework, name, problem in map(json.loads, done.stdout.splitlines()):
        problems.setdefault(framework, {})[name] = problem
    return problems


@pytest.mark.promise(
    "frameworks-resume", "a training resumed from a framework's checkpoint sees what an undisturbed one sees"
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_trainings_that_are_resumed_see_what_an_undisturbed_one_sees(
    framework: str, trained_with: Callable[[str], Results]
) -> None:
    library = "tensorflow" if framework == "keras" else "torch"
    require(library)
    problems, table = trained_with(library)[framework], cases(framework)
    assert list(problems) == [*table, *MORE.get(framework, ())]
    wrong = {}
    for name, problem in problems.items():
        expected = REFUSED.get(framework, {}).get(table[name].kind if name in table else "", "")
        if not problem.startswith(expected) or (problem and not expected):
            wrong[name] = problem
    assert not wrong, "\n".join(f"{name}: {problem}" for name, problem in wrong.items())


def trained(kind: str, folder: Path, world: int, states: list[Any], steps: int) -> tuple[list[Any], list[Any]]:
    """Returns the sorted rows of every global batch, and the states of all ranks behind so many; -1 for the epoch."""
    dataset, options = dataset_of(kind, folder)
    options |= {"num_shards": 4, "uneven": True} if kind == "lanes" else {}
    ranks, ended = [], []
    for rank in range(world):
        loader = feed.DataLoader(dataset, global_batch_size=8, rank=rank, world_size=world, seed=5, **options)
        if states:
            loader.load_state_dict(feed.merge_states(states) if kind == "lanes" else states[0])
        with loader:
            batches = iter(loader)
            ranks.append([seen_in(batch) for batch in itertools.islice(batches, None if steps < 0 else steps)])
            ended.append(loader.state_dict())
    return [sorted(row for part in parts for row in part) for parts in zip(*ranks, strict=True)], ended


@pytest.mark.promise(
    "frameworks-resume", "a training resumed from a framework's checkpoint sees what an undisturbed one sees"
)
@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_ranks_goes_on_with_the_same_global_batches(kind: str, tmp_path: Path) -> None:
    whole, _ = trained(kind, tmp_path / "data", 1, [], -1)
    assert sorted(int(row[0]) for batch in whole for row in batch) == list(range(ROWS)) or kind == "mixture"
    for first, second, third in ((2, 1, 4), (4, 2, 1)):
        begun, states = trained(kind, tmp_path / "data", first, [], 1)
        amid, states = trained(kind, tmp_path / "data", second, states, 2)
        ended, _ = trained(kind, tmp_path / "data", third, states, -1)
        assert begun + amid + ended == whole

"""The table of deadlines in docs/faults.md has every time of the source, with the value that it has there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headrace"
LEAST = 5.0  # seconds: who waits for less need not know
TIME = re.compile(
    "SECONDS|GRACE|TIMEOUT|SILEN|PATIEN|AFTER|WAIT|STALL|INTERVAL|HEARTBEAT|RECENT|WINDOW|LAST_WORDS|DELAY|FORCED|AGAIN"
    "|_FIRST|CACHED|STOP$|RUN_|LIMIT$"
)
NO_TIMES = {  # by name times, and none
    *(
        "SECONDS_PER_HOUR",
        "SIZE_LIMIT",
        "LINE_LIMIT",
        "_LINE_LIMIT",
        "MESSAGE_LIMIT",
        "PART_LIMIT",
        "NO_LIMIT",
        "LIMIT",
    ),
    *("_NO_LIMIT", "_NAME_LIMIT", "ABSTRACT_NAME_LIMIT", "MAX_COST_LIMIT", "_MOST_AFTER", "STALL_STEPS", "TRY_AGAIN"),
    *("LOOKS_PER_SECOND", "MAX_WINDOW", "session.WINDOW", "run_cache.MOST_SECONDS"),
}
KEYS = re.compile(r"timeout|grace|linger|idle_after|SECONDS")  # fields of classes
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
VALUE = re.compile(r"([\d,]+(?:\.\d+)?) (s|min|h)\b")


@cache
def times() -> dict[str, float]:
    """All times of the source, by module and name, or by class and field; in seconds."""
    found: dict[str, float] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{name}": value for name, value in _numbers(node.body) if KEYS.search(name)}
                continue
            for name, value in _numbers([node]):
                full = f"{path.stem}.{name}"
                if TIME.search(name) and not NO_TIMES.intersection((name, full)):
                    assert full not in found, "two modules of one name: tell them apart here"
                    found[full] = value
    return found


def _numbers(nodes: list[ast.stmt]) -> list[tuple[str, float]]:
    found = []
    for node in nodes:
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                expression = ast.Expression(value)
                if not any(isinstance(each, ast.Name | ast.Call | ast.Attribute) for each in ast.walk(expression)):
                    number = eval(compile(expression, "", "eval"), {})
                    if isinstance(number, int | float) and not isinstance(number, bool):
                        found.append((name, float(number)))
    return found


@cache
def rows() -> list[list[str]]:
    """The cells of the rows of both tables: the first has six, the second two."""
    section = (ROOT / "docs" / "faults.md").read_text().split("## Deadlines\n")[1]
    lines = [line for line in section.splitlines() if line.startswith("|") and "---" not in line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if "in the source" not in row]


def names_of(row: list[str]) -> list[str]:
    return re.findall(r"`([\w.]+)`", row[-1])


@pytest.mark.parametrize("row", [row for row in rows() if len(row) == 6], ids=lambda row: row[0][:40])
def test_a_row_has_the_values_of_the_source_and_no_others(row: list[str]) -> None:
    source = times()
    named = {name: source[name] for name in names_of(row)}  # KeyError: there is no such time any more
    told = {float(number.replace(",", "")) * UNITS[unit] for number, unit in VALUE.findall(row[1])}
    assert told == set(named.values()), named


def test_every_time_of_the_source_is_in_one_row() -> None:
    named = [name for row in rows() for name in names_of(row)]
    assert len(named) == len(set(named))
    missing = {name: value for name, value in times().items() if value >= LEAST and name not in named}
    assert not missing, (
        "name them in docs/faults.md: in the row of what waits for them, or among those that end nothing"
    )


def test_every_time_that_a_job_or_a_grid_may_ask_for_is_a_key_of_a_row() -> None:
    keys = {key.split(".")[-1] for row in rows() if len(row) == 6 for key in re.findall(r"`([\w.<>]+)`", row[2])}
    asked = {
        node.target.id
        for folder in (SOURCE / "job" / "model", SOURCE / "grid")
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        and re.search(r"\b(Seconds|StopGrace|MaxRun)\b", ast.unparse(node.annotation))
    }  # fmt: skip
    assert asked - keys == {"run_seconds"}, "that one is an estimate"

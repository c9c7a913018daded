"""headrace's own log: nothing is set up in a program that imports it, and HEADRACE_LOG says what goes to stderr."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys

import pytest

from headrace.log_setup import levels_of_environment, parse_levels

SPEAK = """
import logging
{before}
import headrace
for name in ("headrace", "headrace.feed.client", "headrace.agent", "other"):
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger(name), level)("%s says %s", name, level)
"""

LOAD = """
import os, sys
from headrace.feed import DataLoader

class Items:
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if index == 9 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), 9)
        return index

print(sum(int(batch.sum()) for batch in DataLoader(Items(), batch_size=4, num_workers=1)))
"""


def run(program: str, levels: str | None, *arguments: str) -> tuple[str, list[str]]:
    """What a program writes to standard output, and its lines on standard error."""
    variables = {name: value for name, value in os.environ.items() if name != "HEADRACE_LOG"}
    if levels is not None:
        variables["HEADRACE_LOG"] = levels
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr.splitlines()


def stderr_of(levels: str | None, before: str = "") -> list[str]:
    """Lines on standard error of a program that imports headrace and logs at every level."""
    out, lines = run(SPEAK.format(before=before), levels)
    assert out == ""
    return lines


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", {}),
        ("info", {"headrace": logging.INFO}),
        (" Debug ,", {"headrace": logging.DEBUG}),
        ("headrace.feed=debug,info", {"headrace.feed": logging.DEBUG, "headrace": logging.INFO}),
        ("headrace=error, headrace.agent = warning", {"headrace": logging.ERROR, "headrace.agent": logging.WARNING}),
    ],
)
def test_the_levels_that_a_text_names(text: str, levels: dict[str, int]) -> None:
    assert parse_levels(text) == levels


@pytest.mark.parametrize("text", ["loud", "headrace.feed", "headrace.feed=", "torch=debug", "headracer=info", "10"])
def test_a_text_that_names_no_level_of_headrace_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text)) + r".*debug, info, warning, error"):
        parse_levels(f"info,{text}")


@pytest.mark.parametrize(
    ("variable", "levels"),
    [
        ("", {"headrace": logging.INFO}),
        ("error", {"headrace": logging.INFO}),
        ("headrace.agent=error,headrace.feed=debug", {"headrace": 20, "headrace.agent": 20, "headrace.feed": 10}),
        ("nonsense", {"headrace": logging.INFO}),
    ],
)
def test_the_variable_only_adds_to_a_log_with_a_level_of_its_own(monkeypatch, variable: str, levels) -> None:
    monkeypatch.setenv("HEADRACE_LOG", variable)
    assert levels_of_environment(logging.INFO) == levels


def test_a_program_that_imports_headrace_keeps_its_own_logging() -> None:
    assert stderr_of(None) == ["other says warning"]  # Python's own handler of last resort; headrace's has none
    own = stderr_of(None, "logging.basicConfig(format='own: %(message)s', level='INFO')")
    assert own == [
        f"own: {name} says {level}"
        for name in ("headrace", "headrace.feed.client", "headrace.agent", "other")
        for level in ("info", "warning")
    ]


def test_the_variable_sends_the_levels_that_it_names_to_stderr_once() -> None:
    lines = stderr_of("headrace.feed=debug,warning", "logging.basicConfig(format='own: %(message)s')")
    assert lines.pop() == "own: other says warning"
    form = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\w+) ([\w.]+)\[\d+\]: (.*)")
    assert [form.fullmatch(line).groups() for line in lines] == [  # type: ignore[union-attr]
        ("WARNING", "headrace", "headrace says warning"),
        *(
            (level.upper(), "headrace.feed.client", f"headrace.feed.client says {level}")
            for level in ("debug", "info", "warning")
        ),
        ("WARNING", "headrace.agent", "headrace.agent says warning"),
    ]


def test_a_variable_that_is_not_understood_is_told_and_ends_nothing() -> None:
    first, *rest = stderr_of("headrace.feed=loud")
    assert "HEADRACE_LOG: 'headrace.feed=loud' is not understood" in first
    assert [line.partition("]: ")[2] for line in rest if "]: " in line] == [
        "headrace says warning",
        "headrace.feed.client says warning",
        "headrace.agent says warning",
    ]


@pytest.mark.parametrize("levels", [None, "headrace.feed=info"])
def test_a_loader_logs_that_a_worker_ended_only_when_it_is_asked_to(tmp_path, levels: str | None) -> None:
    out, lines = run(LOAD, levels, str(tmp_path / "killed"))
    assert out == f"{sum(range(16))}\n"
    told = [line for line in lines if "INFO headrace.feed.client.local_pool[" in line]
    ended = [line.partition("]: ")[2].partition(": DataLoader worker")[0] for line in told]
    assert ended == (["worker 0: ended: killed by SIGKILL"] if levels else [])
    assert lines == told

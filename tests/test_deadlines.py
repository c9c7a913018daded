"""Every time of the source stands, with its value, in the table for developers, with which the one for users agrees."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headrace"
DOCS = ROOT / "docs"
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
        "SUPERVISOR_LIMIT",
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
    return [row for row in cells((DOCS / "developers" / "deadlines.md").read_text()) if "in the source" not in row]


def rows_for_users() -> list[list[str]]:
    return cells((DOCS / "faults.md").read_text().split("## Deadlines\n")[1])[1:]


def cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


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
        "name them in docs/developers/deadlines.md: in the row of what waits for them, or among those that end nothing"
    )


def test_the_table_for_users_has_rows_of_the_one_for_developers() -> None:
    full = [[cell.replace("](../", "](") for cell in row[:4]] for row in rows()]
    assert [row for row in rows_for_users() if row not in full] == []


def test_every_time_that_a_job_or_a_grid_may_ask_for_is_a_key_of_a_row() -> None:
    keys = {key.split(".")[-1] for row in rows_for_users() for key in re.findall(r"`([\w.<>]+)`", row[2])}
    asked = {
        node.target.id
        for folder in (SOURCE / "job" / "model", SOURCE / "grid")
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        and re.search(r"\b(Seconds|StopGrace|MaxRun)\b", ast.unparse(node.annotation))
    }  # fmt: skip
    assert asked - keys == {"run_seconds"}, "that one is an estimate"


PLAYED = {  # by the beginning of a row: a test in which a time of it, shortened or simulated, comes to its end
    "the supervisor of": "engines/test_local_detach.py::"
    "test_a_supervisor_that_does_nothing_is_ended_and_the_reason_told",
    "agents of all": "agent/test_agent_coordinator.py::"
    "test_a_host_that_does_not_come_is_named_with_all_others_that_are_missing",
    "a group is ready": "agent/test_agent_order.py::"
    "test_a_group_that_is_not_ready_in_time_fails_the_job_and_is_named_with_its_port",
    "a feed server is ready": "agent/test_agent_keptserver.py::test_one_that_does_nothing_before_it_is_ready_is_killed",
    "packages are": "engines/test_local_requirements.py::"
    "test_an_installation_that_another_process_does_not_end_is_waited_for_so_long_and_named",
    "a sign of life": "agent/test_agent_client.py::test_a_coordinator_that_falls_silent_is_lost",
    "output, metric": "agent/test_agent_order.py::test_a_job_without_any_sign_of_life_fails_and_names_the_quietest",
    "a status line": "agent/test_agent_keptserver.py::test_one_that_falls_silent_is_killed_and_one_that_speaks_is_not",
    "the job": "agent/test_agent_coordinator.py::test_max_run_stops_the_job_with_its_name",
    "programs save": "agent/test_agent_coordinator.py::test_after_a_failure_nobody_waits_longer_than_five_seconds",
    "the first data": "feed/test_feed_identity.py::"
    "test_when_the_last_server_is_gone_for_good_the_error_names_it_within_ten_seconds",
    "a batch": "feed/test_feed_faults.py::test_a_sample_that_hangs_is_named_when_the_time_is_up",
    "an executor's": "feed/test_feed_trouble.py::test_a_sample_that_always_hangs_is_an_error_that_names_it",
    "a handshake": "feed/test_feed_tls.py::test_a_silent_tls_client_is_closed_soon",
    "an index that": "feed/test_feed_replaced.py::"
    "test_who_waits_for_an_index_waits_while_shards_are_counted_and_no_longer",
    "what is killed": "agent/test_agent_processes.py::test_leftovers_get_a_moment_and_are_then_killed",
    "a call between": "agent/test_agent_control.py::test_a_stranger_who_never_begins_a_handshake_is_closed",
    "tools:": "instance/test_channels_mountinfo.py::test_a_tool_that_does_not_end_is_named_and_the_mount_is_left",
    "a connection to S3": "engines/test_local_channels.py::"
    "test_a_store_that_takes_the_question_and_does_not_answer_ends_the_check_of_a_channel_soon",
    "an answer to a": "engines/test_slurm_submission.py::test_a_job_that_never_came_is_a_failure_of_the_infrastructure",
    "a pod has": "engines/test_kubernetes_engine.py::test_a_run_that_waits_for_too_long_has_failed_and_leaves_nothing",
    "a platform": "endpoint/test_sagemaker_attempts.py::test_a_job_that_the_service_does_not_know_for_long_is_over",
    "workers of tf": "adapters/test_tensorflow_distribute.py::test_a_wrong_address_is_named_in_time",
    "`headrace doctor`": "cli/test_cli_doctor.py::"
    "test_a_trial_over_tcp_that_stands_still_is_ended_by_the_time_of_one_stage",
    "a grid: its query": "grid/test_grid_query.py::test_a_query_of_sqlite_takes_no_longer_than_it_may",
    "a grid: all lines": "grid/test_grid_run.py::test_a_budget_that_is_used_up_and_a_deadline_stop_everything",
    "work for an idle": "engines/test_local_data_hosts.py::"
    "test_data_hosts_join_when_the_trainer_waits_and_leave_when_it_does_not_and_no_batch_is_lost",
}
NOT_PLAYED = {
    "the first process": "it takes namespaces that hang, which only a broken kernel or pasta gives",
    "a server of tf.data.service is ready": "it is the wait for a feed server with another limit, in the same class",
    "what serves channels": "it is the wait for a supervisor with another limit, by the same `Idling`",
    "the last checkpoints": "a whole run whose store hangs: seconds; that the helper's end fails the run is played",
    "model and output": "likewise",
    "the end of a record": "likewise; `headrace wait` is played with a bucket that does not answer",
    "a fetch of the record": "a pod's own clock, on a real cluster: tests/kubernetes",
    "a pod: a command": "on a real cluster: tests/kubernetes",
    "inside [tf.data": "TensorFlow's own times",
    "`headrace serve`": "its longest wait is a container's image; the clock of a request is a rule, not a wait",
}


@pytest.mark.parametrize("row", [row for row in rows() if len(row) == 6], ids=lambda row: row[0][:40])
def test_a_row_is_played_or_it_is_said_why_not(row: list[str]) -> None:
    played = [test for begins, test in PLAYED.items() if row[0].startswith(begins)]
    assert len(played) + sum(row[0].startswith(begins) for begins in NOT_PLAYED) == 1
    for test in played:
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text()

"""The first of several failures is named."""

import pytest

from headrace.agent.control.control_messages import Exited, clip_lines
from headrace.agent.coordinator.error_line import CHARACTERS, error_line
from headrace.agent.coordinator.first_cause import Suspect, SuspectKind, exit_suspect, first_of, lost_peer
from headrace.runs import Cause, CauseKind


def died(stream, at, exit_code=None, number=None, *lines):
    return exit_suspect("dnn", "algo-1", Exited(stream, at, exit_code, number, last_lines=lines))


@pytest.mark.promise("runs", "the first cause is named: group, host, rank, exit code or signal, and the last lines")
def test_a_killed_rank_wins_over_the_rank_that_lost_it_even_when_that_one_is_heard_of_first():
    follower = died("1", 10.0, 1, None, "RuntimeError: Connection closed by peer [127.0.1.1]:1234")
    victim = died("0", 10.1, None, 9)
    assert first_of([follower, victim]).cause.stream == "0"


def test_the_rank_that_raised_wins_over_peers_that_ended_before_it():
    follower = died("1", 10.0, 1, None, "torch.distributed.DistBackendError: ...", "Connection reset by peer")
    raised = died("0", 10.3, 1, None, "ValueError: bad label")
    assert first_of([follower, raised]).cause.last_lines == ("ValueError: bad label",)


def test_of_equal_kinds_the_earliest_wins():
    assert first_of([died("1", 11.0, 3), died("0", 10.0, 4)]).cause.exit_code == 4
    assert first_of([died("1", 11.0, None, 9), died("0", 10.0, None, 11)]).cause.signal == 11


def test_a_watchdog_that_aborts_after_it_lost_its_peer_is_a_follower():
    follower = died("1", 10.0, None, 6, "terminate called: NCCL error: remote process exited")
    assert follower.kind is SuspectKind.LOST_PEER
    assert first_of([follower, died("0", 10.4, 3)]).cause.exit_code == 3


def test_a_lost_host_wins_over_the_ranks_that_missed_it():
    host = Suspect(SuspectKind.SILENT, 12.0, Cause(CauseKind.HOST_LOST, "silent for 5 s", "dnn", "algo-2", "agent"))
    assert first_of([died("0", 10.0, 1, None, "Connection reset by peer"), host]).cause.host == "algo-2"


@pytest.mark.promise("sagemaker-differences", "absent here: the class of an error is guessed from words in its output")
def test_ordinary_last_words_are_no_complaint_about_a_peer():
    assert not lost_peer(["Traceback (most recent call last):", "KeyError: 'label'"])


def test_the_cause_names_place_and_code():
    assert str(died("3", 1.0, 3).cause) == "dnn/algo-1[3]: exited with code 3"
    assert str(died("3", 1.0, None, 9).cause) == "dnn/algo-1[3]: killed by SIGKILL"


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 2, in <module>',
    "    raise ValueError('bad label')",
    "ValueError: bad label",
)
GROUP = (
    "  + Exception Group Traceback (most recent call last):",
    '  |   File "train.py", line 9, in <module>',
    "  | ExceptionGroup: workers (2 sub-exceptions)",
    "  +-+---------------- 1 ----------------",
    *("    | " + line for line in TRACEBACK),
    "    +---------------- 2 ----------------",
    "    | KeyError: 'never raised'",
    "    +------------------------------------",
)
GRAPH = (  # the message of TensorFlow's error holds the frames in which the node was made
    *TRACEBACK[:-1],
    "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:",
    "",
    "Detected at node 'dense/Relu' defined at (most recent call last):",
    '  File "train.py", line 9, in <module>',
    "Node: 'dense/Relu'",
    "In[0] mismatch In[1] shape: 10 vs. 12",
)
TORCHRUN = (  # what torchrun adds after the last words of a rank
    "E1127 20:00:00.000000 7 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0",
    TRACEBACK[0],
    *(
        line
        for number in range(8)
        for line in (
            f'  File "torch/distributed/launcher/api.py", line {number}, in f',
            "    return f(*args)",
            "    ^^^",
        )
    ),
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=" * 60,
    "train.py FAILED",
    *("-" * 60, "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60, "Root Cause (first observed failure):", "[0]:"),
    *("  time      : 2026-11-27_20:00:00", "  rank      : 0 (local_rank: 0)", "  exitcode  : 1 (pid: 9)", "=" * 60),
)
IGNORED = ("Exception ignored in: <function f at 0x7f>", *TRACEBACK[:-1], "OSError: closed")


@pytest.mark.parametrize(
    ("lines", "exit_code", "number", "error"),
    [
        (TRACEBACK, 1, None, "ValueError: bad label"),
        (TRACEBACK[1:], 1, None, "ValueError: bad label"),  # a long traceback: its first line is no longer kept
        ([f"[rank3]: {line}" for line in TRACEBACK], 1, None, "ValueError: bad label"),
        ((*TRACEBACK, "", *TRACEBACK[:-1], "KeyError: 'x'"), 1, None, "KeyError: 'x'"),  # while the first was handled
        ((*TRACEBACK, "epoch 1 done", *IGNORED), 1, None, "ValueError: bad label"),
        ((*TRACEBACK, "tried again, and that worked"), 3, None, ""),  # no exception gives exit code 3
        ((*TRACEBACK[:-1], "RuntimeError: Error(s) in loading:", "\tMissing key: w"), 1, None,
         "RuntimeError: Error(s) in loading: Missing key: w"),
        (('  File "train.py", line 1', "    def f(", "         ^", "SyntaxError: '(' was never closed"), 1, None,
         "SyntaxError: '(' was never closed"),
        (("python: can't open file '/opt/ml/code/typo.py': [Errno 2] No such file or directory",), 2, None,
         "python: can't open file '/opt/ml/code/typo.py': [Errno 2] No such file or directory"),
        (("loading", "train.sh: line 3: nvcc: command not found"), 127, None,
         "train.sh: line 3: nvcc: command not found"),
        (("loading", "train.sh: 3: nvcc: not found"), 127, None, "train.sh: 3: nvcc: not found"),  # as dash says it
        (("epoch: 3: loss", "done"), 127, None, ""),
        (GRAPH, 1, None, "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error: "
         "Detected at node 'dense/Relu' defined at (most recent call last):"),
        ((*TRACEBACK, *TORCHRUN), 1, None, "ValueError: bad label"),
        ((*TRACEBACK, *(f"epoch {n}: done" for n in range(11)), *TORCHRUN), 1, None,
         f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: {'=' * 60}"),  # that rank said nothing
        ([f"\x1b[31m{line}\x1b[0m" for line in TRACEBACK], 1, None, "ValueError: bad label"),  # with FORCE_COLOR
        (("trainer: error: no such file", "usage: trainer"), 2, None, "trainer: error: no such file"),
        (("terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"), None, 6,
         "std::bad_alloc"),
        (GROUP, 1, None, "ValueError: bad label"),
        ((*GROUP[:4], *GROUP[-3:]), 1, None, "ExceptionGroup: workers (2 sub-exceptions)"),
        (GROUP[:9], 3, None, "ValueError: bad label"),
        ((*TRACEBACK, *(f"epoch {n}: done" for n in range(11))), 1, None, ""),  # handled, as the program went on
        ((*TRACEBACK, "For debugging see ...", *(f"frame #{n}: c10::f()" for n in range(14))), 1, None,
         "ValueError: bad label"),
        (TRACEBACK, None, 9, ""),  # who sends SIGKILL has not read it
        (("error: no data", "error: 0.25"), 3, None, "error: no data"),  # the last one is a figure
        (("epoch 3: validation error: 0.1",), 3, None, ""),
        ((), 1, None, ""),
    ],
)  # fmt: skip
def test_what_a_program_itself_said_its_error_was(lines, exit_code, number, error):
    assert error_line(lines, exit_code, number) == error


NOT_FOUND = [
    "error: cannot start dotnet: No such file or directory",
    "env: ‘python9’: No such file or directory",
    "/usr/bin/env: 'node': Permission denied",
    "nice: nvcc: No such file or directory",
    "zsh:1: command not found: nvcc",
    "fish: Unknown command: nvcc",
    "timeout: failed to run command ‘nvcc’: No such file or directory",
    "sh: nvcc: not found",
    "setsid: failed to execute nvcc: No such file or directory",
    "train: error while loading shared libraries: libcuda.so.1: cannot open shared object file",
    "bash: ./train: cannot execute binary file: Exec format error",
]


@pytest.mark.promise("faults", "a cause names the program that was not found")
@pytest.mark.parametrize("line", NOT_FOUND)
def test_a_program_that_was_not_found_is_named(line: str) -> None:
    for code in (126, 127):
        assert error_line(["loading", line, "done"], code, None) == line
    if not line.startswith("error: "):
        assert error_line(["loading", line, "done"], 3, None) == ""  # it may have gone on without that


def test_an_error_behind_which_a_launcher_told_much_is_named_and_the_last_lines_are_shown():
    ended = Exited("0", 1.0, exit_code=1, last_lines=clip_lines([line.encode() for line in (*TRACEBACK, *TORCHRUN)]))
    cause = exit_suspect("dnn", "algo-1", ended).cause
    assert str(cause) == "dnn/algo-1[0]: exited with code 1: ValueError: bad label"
    assert cause.last_lines == tuple(TORCHRUN[-20:])


def test_the_error_is_part_of_the_cause_and_leaves_room_for_place_and_code_in_the_services_limit():
    long = died("0", 1.0, 1, None, *TRACEBACK[:-1], "ValueError: " + 2000 * "x").cause
    assert str(died("0", 1.0, 1, None, *TRACEBACK).cause) == "dnn/algo-1[0]: exited with code 1: ValueError: bad label"
    assert len(long.detail) == CHARACTERS
    assert long.detail.endswith("x...")
    assert len(str(long)) < 1024

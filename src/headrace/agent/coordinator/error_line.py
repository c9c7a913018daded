"""The error that a program named before it ended, found in its last lines: a pure function.

It is for people, who read it as part of the cause. Nothing is decided by it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from headrace.runs.log_pages import clean

CHARACTERS = 500
"""An error is cut there, so that it, the place and the exit code fit into SageMaker's FailureReason (1024)."""

_RANK = re.compile(r"^\[rank\d+\]: ?")  # torch puts it before each line of a rank's traceback
_FRAME = re.compile(r'^ +File ".*", line \d+')
_EXCEPTION = re.compile(r"^[^\W\d][\w.<>]*(: |$|:$)")
_GROUP = re.compile(r"^ {2,}(\| ?|\+ (?=Exception Group ))")  # before each line of an ExceptionGroup's traceback
_BORDER = re.compile(r"^ {2,}\+[-+]+( (\d+|\.\.\.) -+)?$")  # between its exceptions
_HEADINGS = ("Traceback (most recent call last):", "Exception Group Traceback (most recent call last):")
_IGNORED = "Exception ignored "
_OF_AN_ERROR = re.compile(r"^(\s|frame #|Exception ignored |(Exception Group )?Traceback )")
_MOST_AFTER = 10  # ordinary lines after the exception that ended a program: warnings at exit, the rest of its message
_OF_TORCHRUN = "ChildFailedError:"
_WORDS_WITHIN = 20  # lines at the end: an error of which a program only told stands before them
_WORDS = re.compile(
    r"^(\S+: )*((fatal )?error|fatal|fatal python error): (?![-+\d.e%]+$)\S|^\S+: line \d+: |^\S*sh: \d+: "
    r"|^\S+: can't open file ",
    re.IGNORECASE,
)
# What shells, env, nice, timeout and the dynamic loader say of a program that is not there, or cannot run.
_NOT_STARTED = re.compile(
    r"^\S+: .*(not found(: \S+)?|Unknown command: \S+|No such file or directory|Permission denied"
    r"|cannot execute.*|Exec format error)$"
    r"|^\S+: error while loading shared libraries: "
)
_NO_PROGRAM = (126, 127)
"""Exit codes of a program that cannot run, and of one that was not found."""
_WHAT = re.compile(r"^\s*what\(\): +(?=\S)")


def error_line(last_lines: Sequence[str], exit_code: int | None, number: int | None) -> str:
    r"""Returns what a program itself said its error was; empty when it did not say.

    >>> error_line(['  File "train.py", line 2, in <module>', "KeyError: 'label'"], 1, None)
    "KeyError: 'label'"
    >>> error_line(["train.sh: line 3: nvcc: command not found"], 127, None)
    'train.sh: line 3: nvcc: command not found'

    It is the exception of the last traceback of Python, if an exception can have ended the program: it exited with 1
    and printed little after it, or printed nothing after it. A group of exceptions has its last one that was raised.
    Else it is the last line that begins as errors of compiled programs and shells do (``error: ...``,
    ``prog: fatal: ...``, ``a.sh: line 3: ...``). Of a program that aborted it is what C++ says of the
    exception that nobody caught. Other signals come from outside: what was printed before says nothing about them.

    Args:
        last_lines: its last output.
        exit_code, number: one is set: its exit code, or the signal that ended it.
    """
    if number is not None and number != signal.SIGABRT:
        return ""
    lines = [_RANK.sub("", clean(line)).rstrip() for line in last_lines]
    lines = [_GROUP.sub("", line) for line in lines if not _BORDER.match(line)]
    lines = [line for line in lines if line]
    text = _raised(lines, anywhere=exit_code == 1) or _in_words(lines[-_WORDS_WITHIN:], exit_code)
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 3] + "..."


def _raised(lines: Sequence[str], anywhere: bool) -> str:
    """Returns the text of the last exception whose traceback was printed."""
    text, at, inside, ignored = "", -1, False, False
    for index, line in enumerate(lines):
        if line in _HEADINGS:
            inside, ignored = True, index > 0 and lines[index - 1].startswith(_IGNORED)
        elif _FRAME.match(line) and not text:  # a traceback whose first line is no longer kept; later ones have theirs
            inside = True
        elif inside and not line.startswith((" ", "\t")):
            inside = False
            if not ignored and _EXCEPTION.match(line):
                # torchrun's own exception says only that a rank failed, whose exception stands right before it
                of_a_rank = _OF_TORCHRUN in line and text and _few(lines[at + 1 : index])
                text, at = text if of_a_rank else line, index
            ignored = False
    if not text:
        return ""
    if text == lines[at] and text.endswith(":") and at + 1 < len(lines):  # the message begins in the next line
        at += 1
        text = f"{text} {lines[at].strip()}"
    after = lines[at + 1 :]
    return text if not after or (anywhere and _few(after)) else ""


def _few(lines: Sequence[str]) -> bool:
    return sum(not _OF_AN_ERROR.match(line) for line in lines) <= _MOST_AFTER


def _in_words(lines: Sequence[str], exit_code: int | None) -> str:
    for line in reversed(lines):
        if _WHAT.match(line):
            return _WHAT.sub("", line)
        if _WORDS.match(line) or (exit_code in _NO_PROGRAM and _NOT_STARTED.match(line)):
            return line
    return ""

"""How a process ended, in words. Every room may import this module; it imports nothing of headrace."""

from __future__ import annotations

import signal

INTERRUPTED = 130  # exit code of a command that Ctrl-C has ended


def signal_name(number: int) -> str:
    """Returns the name of a signal.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def exit_text(exit_code: int | None, number: int | None) -> str:
    """Returns how a process ended, as a predicate.

    >>> exit_text(3, None), exit_text(None, 9)
    ('exited with code 3', 'killed by SIGKILL')

    Args:
        exit_code, number: one is set: its exit code, or the signal that killed it.
    """
    return f"exited with code {exit_code}" if number is None else f"killed by {signal_name(number)}"


def short_exit_text(exit_code: int | None, number: int | None) -> str:
    """Returns how a process ended, as a noun. The arguments are those of `exit_text`.

    >>> short_exit_text(3, None), short_exit_text(None, 9)
    ('exit code 3', 'SIGKILL')
    """
    return f"exit code {exit_code}" if number is None else signal_name(number)


def split_status(status: int) -> tuple[int | None, int | None]:
    """Splits the exit status of `os.waitstatus_to_exitcode` or `subprocess` into (exit code, signal); one is set."""
    return (status, None) if status >= 0 else (None, -status)

"""The words of the fault table: moments, victims, and what is done to them.

    at(START, KILL, program("algo-2"))      a deed: waits for the moment, then does it; the row's limit counts from here

A moment is what the run's files say, never a time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cut_links import cut as cut_cable

from headrace.runs.events import FeedReady, JobStopping, SecondaryStatus, StatusChanged

if TYPE_CHECKING:
    from fault_play import Play

Deed = Callable[["Play"], None]
Victim = Callable[["Play"], int]
KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT

# --- moments ---------------------------------------------------------------------------------------------------------


def start(_: Play) -> None:
    """As soon as the victim is there: victims are waited for."""


def engine_started(play: Play) -> None:
    """The supervisor has taken over."""
    assert play.supervisor


def programs_run(count: int) -> Deed:
    """All programs have said that they run."""
    return lambda play: play.until(lambda: play.text().count("running") >= count, "the programs run")


def last_of(*others: str) -> Deed:
    """The programs of all other hosts have ended well."""

    def moment(play: Play) -> None:
        programs_run(1 + len(others))(play)
        for host in others:
            play.flag(host)
        play.until(lambda: all(play.exited(host) for host in others), "the others end")

    return moment


def finishing(count: int) -> Deed:
    """All ranks have come to the end of their work."""

    def moment(play: Play) -> None:
        programs_run(count)(play)
        play.flag("all")
        play.until(lambda: play.text().count("finishing") >= count, "the ranks finish")

    return moment


def stopping(count: int) -> Deed:
    """The user has pressed Ctrl-C, and the programs save their work."""

    def moment(play: Play) -> None:
        programs_run(count)(play)
        play.callers[0].send_signal(signal.SIGINT)
        play.until(lambda: play.text().count("saving") >= count, "the programs save")

    return moment


def part(status: SecondaryStatus) -> Deed:
    """The run has come to that part of its work."""
    return lambda play: play.until(
        lambda: any(each.status is status for each in play.events(StatusChanged)), f"status {status.value}"
    )


def feed_ready(play: Play) -> None:
    """The trainer runs and its data worker is ready."""
    play.until(lambda: play.events(FeedReady), "the feed")
    programs_run(1)(play)


def complete(play: Play) -> None:
    """The trainer has ended well, and the others are being stopped."""
    feed_ready(play)
    play.flag("all")
    play.until(lambda: play.events(JobStopping), "the job's end")


# --- victims ---------------------------------------------------------------------------------------------------------


def program(host: str, stream: str = "0") -> Victim:
    """A program of a host."""
    return lambda play: play.program(host, stream)


def agent(host: str) -> Victim:
    """The agent of a host."""
    return lambda play: play.agent(host)


def helper(name: str) -> Victim:
    """A process that works beside the agents."""
    return lambda play: play.found(f"headrace.hosting.helpers.{name} ")


def daemon_proxy(play: Play) -> int:
    """The process that mpirun takes for its daemon on algo-2."""
    return play.found("proxy.py daemon ", without="mpirun --host")


def rank_proxy(play: Play) -> int:
    """The process that mpirun takes for a rank."""
    return play.found("proxy.py rank ", without="mpirun --host")


def entering(play: Play) -> int:
    """A process that is about to become an isolated host."""
    return play.found("isolation.enter_namespaces ")


def pasta(play: Play) -> int:
    """The process that carries what goes out of the job's network."""
    return play.found("pasta -q")


def network(play: Play) -> int:
    """The keeper of the job's network."""
    return play.found("headrace.hosting.isolation.network ")


def executor(play: Play) -> int:
    """The data worker process behind the feed server."""
    server = play.program("algo-2", "feed")

    def look() -> int | None:
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        return next((int(pid) for pid in children if _is_executor(int(pid))), None)

    return play.until(look, "executor")


def _is_executor(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"from multiprocessing." not in words


def supervisor(play: Play) -> int:
    """The supervisor."""
    return play.supervisor


def caller(play: Play) -> int:
    """The process of `headrace run`."""
    return play.run and play.callers[0].pid


# --- deeds -----------------------------------------------------------------------------------------------------------


def at(moment: Deed, number: signal.Signals, victim: Victim) -> Deed:
    """At a moment a victim gets a signal."""

    def deed(play: Play) -> None:
        moment(play)
        pid = victim(play)
        play.strike()
        os.kill(pid, number)

    return deed


def at_last(before: Deed, moment: Deed, number: signal.Signals, victim: Victim) -> Deed:
    """As `at`, at a moment when the victim, which is there after `before`, may just have ended by itself."""

    def deed(play: Play) -> None:
        before(play)
        pid = victim(play)
        moment(play)
        play.strike()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    return deed


def then(*deeds: Deed) -> Deed:
    """One after the other."""

    def deed(play: Play) -> None:
        for each in deeds:
            each(play)

    return deed


def flag(name: str) -> Deed:
    """Makes a file for which the programs wait."""
    return lambda play: play.flag(name)


def struck(play: Play) -> None:
    """The limit counts from here."""
    play.strike()


def disk_full(play: Play) -> None:
    """Nothing more can be written where the runs are."""
    play.until(lambda: os.statvfs(play.place / "home").f_bavail == 0, "the disk is full")


def let_end(play: Play) -> None:
    """Lets the programs end; the limit counts from here."""
    play.strike()
    play.flag("all")


def first_to_go(victim: Victim) -> Deed:
    """Makes a process the first that the kernel takes when memory is short."""
    return lambda play: Path(f"/proc/{victim(play)}/oom_score_adj").write_text("1000") and None


def is_over(play: Play) -> None:
    """The run has ended."""
    play.until(lambda: play.run.finished, "the run's end")


def cut(host: str) -> Deed:
    """Pulls the cable of a host."""

    def deed(play: Play) -> None:
        play.strike()
        cut_cable(play.run.paths, host)

    return deed


def small_disk(name: str, megabytes: int) -> Deed:
    """Mounts a small disk as a folder of the place."""

    def deed(play: Play) -> None:
        (play.place / name).mkdir()
        # It goes with the box.
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", play.place / name], check=True)

    return deed


def nothing(_: Play) -> None:
    """The job is its own fault."""


def said(words: str) -> Deed:
    """Checks that the user was told something."""

    def check(play: Play) -> None:
        told = "\n".join(play.said_to_user(number) for number in range(len(play.callers)))
        assert words in told, f"the user was not told {words!r}"

    return check


def last_words(words: str) -> Deed:
    """Checks that the cause has some of the program's last lines."""

    def check(play: Play) -> None:
        assert words in "\n".join(play.run.cause.last_lines), play.run.cause

    return check


def printed(words: str) -> Deed:
    """Checks that a program has printed something."""

    def check(play: Play) -> None:
        assert words in play.text(), f"not printed: {words!r}"

    return check

"""Runs in a new process, before the program: ties it to its parent, sets its limits, then becomes it.

    python -I -S bootstrap.py PARENT_PID TIED CPUS NICE GROUPS PROGRAM [ARGUMENT ...]

`TIED` is 1 if the kernel must send SIGKILL to the program when its parent dies (PR_SET_PDEATHSIG). The parent may
die before that request is made, so the parent's pid is compared afterwards. The kernel looks at the parent's
*thread*: start programs from a thread that lives as long as the process. `CPUS` is a comma-separated list, or `-` for
all. `GROUPS` are the directories of the control groups that it enters, one a line, or `-`: it is in them before the
program's first instruction, and so is all that the program ever starts.

A program of its own is used instead of `preexec_fn`, which is not safe in a process that has threads.

Uses the standard library only, and as little of it as it can: this is part of the start time of every program.
"""

from __future__ import annotations

import ctypes
import os
import sys

# The module `signal` wraps these in enums, which is half of this program's time.
from _signal import SIG_DFL, SIGKILL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 127  # the shell's exit code for a command that cannot be started


def prctl(option: int, value: int) -> None:
    """Calls prctl(2). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")


def become_subreaper() -> None:
    """Makes this process the parent of descendants whose own parent dies."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def enter_groups(directories: list[str]) -> bool:
    """Moves this process into control groups. Returns whether it could; prints why not."""
    for directory in directories:
        try:
            with open(f"{directory}/cgroup.procs", "w") as file:  # noqa: PTH123  (pathlib is slow to import)
                file.write("0")
        except OSError as error:
            print(f"cannot enter the control group {directory}: {error.strerror}", file=sys.stderr)
            return False
    return True


def main(arguments: list[str]) -> int:
    """Becomes the program. Returns only when it cannot be started."""
    parent, tied, cpus, nice, groups, *argv = arguments
    if tied == "1":
        prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != int(parent):
        return NOT_STARTED
    if groups != "-" and not enter_groups(groups.split("\n")):
        return NOT_STARTED
    if cpus != "-":
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    if int(nice):
        os.nice(int(nice))
    for number in (SIGPIPE, SIGXFSZ):  # Python ignores them, and that would be inherited
        signal(number, SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"error: cannot start {argv[0]}: {error.strerror}", file=sys.stderr)
    return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Every worker of pytest-xdist runs in a box: namespaces of its own for processes, network, mounts and shared memory.

So tests run beside each other that use the same ports and the same places for temporary files, what a test leaves
behind is told from what any other program of the machine does, and nothing outlives a worker. Boxes need util-linux
and iproute2, and root or user namespaces: in a box of an ordinary user, root of such a namespace arranges it, and the
tests have their user's ids. Where there are no boxes, tests run one after the other (`why_not` says why).

A box has a default route, to nowhere: what tests of the way out of isolated instances need. It has a name server that
knows no name: the machine's own cannot be reached, and programs would wait seconds for each name.
"""

from __future__ import annotations

import functools
import multiprocessing.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from headrace.home import HOME_VARIABLE
from headrace.hosting.isolation import syscalls
from notes import note

AFTER_MULTIPROCESSING = -200  # its own folder goes at -100
NETWORKS = Path("/run/netns")  # names of network namespaces; a file there outlives its namespace
BOX = "HEADRACE_TESTS_BOX"  # tells the first program of a box its folder for temporary files
UNSHARE = ("unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
# The first process waits for the worker, and reaps whoever loses his parent. $0 is the folder that the box hides.
SCRIPT = """
set -e
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/netns 2> /dev/null || true  # an ordinary user's box has none to hide
[ ! -d /run/netns ] || mount -t tmpfs tmpfs /run/netns
mkdir "$0/tmp"
chmod 1777 "$0/tmp"  # some tests are other users
mount --bind "$0/tmp" "$HEADRACE_TESTS_BOX"
ip link set lo up
ip link add out type veth peer name far
ip addr add 192.0.2.2/24 dev out
ip link set far up
ip link set out up
ip route add default via 192.0.2.1
if [ -e /etc/resolv.conf ]; then
    echo "nameserver 192.0.2.2" > "$HEADRACE_TESTS_BOX/resolv.conf"
    mount --bind "$HEADRACE_TESTS_BOX/resolv.conf" /etc/resolv.conf
    NAME_SERVER 192.0.2.2 < /dev/null > /dev/null
fi
exec 3<&0
"$@" <&3 3<&- &
wait $!
"""


_own_shared_memory: list[bool] = []


def has_own_shared_memory() -> bool:
    """Whether this process, and what it starts, alone use its /dev/shm."""
    return bool(_own_shared_memory)


@functools.cache
def why_not() -> str:
    """Returns why there can be no boxes here; nothing if there can."""
    missing = [tool for tool in ("unshare", "ip", "mount") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (apt-get install util-linux iproute2)"
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            box_command(Path(folder), ["true"]), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    return f"needs root, or user namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def box_command(folder: Path, command: Iterable[str]) -> list[str]:
    """Returns what runs a command in a box.

    Args:
        folder: what the box sees as its folder for temporary files.
        command: program and arguments.
    """
    names = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).with_name("unknown_names.py"))])
    script = SCRIPT.replace("NAME_SERVER", names)
    unshare, back = [*UNSHARE], []
    if os.geteuid():
        unshare += ["--user", "--map-root-user"]
        back = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}", "--"]
    return ["env", f"{BOX}={_place(folder)}", *unshare, "sh", "-c", script, str(folder), *back, *command]


def _place(folder: Path) -> Path:
    """Where a box has its temporary files: /tmp, unless this very code or its Python lies there."""
    used = [Path(__file__).parent, Path(sys.prefix), Path(sys.base_prefix), *(Path(each) for each in sys.path if each)]
    return folder if any(each.resolve().is_relative_to("/tmp") for each in used) else Path("/tmp")


def boxed_python(folder: Path) -> str:
    """Returns the interpreter of a worker in a box, as execnet wants it named."""
    return shlex.join(box_command(folder, [sys.executable]))


def own_signals() -> None:
    """Gives the programs of tests the signals of a terminal's foreground: `&` and nohup have pytest ignore some.

    A handler ends with exec. So nohup still holds for this process, but not for what it starts.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:  # Python itself ignores the two left out
            signal.signal(number, _nohup if number is signal.SIGHUP else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _nohup(*_: object) -> None:
    """Ignores SIGHUP, here only."""


def stand_apart() -> None:
    """Gives this process a folder for temporary files, with a home of headrace, and, as root, a /dev/shm of its own.

    The folder goes when the process ends, after multiprocessing has removed the one that it has in it.
    """
    own_signals()
    folder = tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="hr-")
    os.environ[HOME_VARIABLE] = f"{folder}/home"
    if syscalls.may_separate():
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
        syscalls.mount("tmpfs", "/dev/shm", "tmpfs")
        NETWORKS.mkdir(exist_ok=True)
        syscalls.mount("tmpfs", str(NETWORKS), "tmpfs")
        _own_shared_memory.append(True)
    else:
        note(
            "not looked for on this machine",
            "files of /dev/shm that nobody holds: only root may mount one for the tests",
        )
    multiprocessing.util.Finalize(
        None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=AFTER_MULTIPROCESSING
    )


def settle() -> str:
    """Makes this process, the first Python of a box, at home there. Returns its folder for temporary files."""
    own_signals()
    _own_shared_memory.append(True)
    folder = tempfile.tempdir = os.environ["TMPDIR"] = os.environ.pop(BOX)
    os.environ[HOME_VARIABLE] = f"{folder}/home"
    return folder


def workers() -> int:
    """Returns how many workers pay: tests wait much of their time. 0: one after the other, where there are no boxes.

    Raises:
        RuntimeError: in CI there are none, where all tests one after the other would take longer than it has.
    """
    wanted = int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or min(8, 2 * len(os.sched_getaffinity(0))))
    if why_not() and "CI" in os.environ:
        raise RuntimeError(f"tests cannot run side by side: there are no boxes here: {why_not()}")
    return 0 if why_not() else wanted

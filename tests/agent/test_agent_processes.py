"""The process table, starting and ending processes: real ones."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.agent.host.process import Reaper, Running, end_leftovers
from headrace.exit_status import exit_text
from headrace.processes import process_table
from headrace.processes.process_table import descendants, describe_exit, is_running, look, reap, send
from headrace.processes.sigterm_tree import EndingTree
from headrace.processes.spawn import spawn
from headrace.runs import LogWriter
from patience import allowed


def until(condition, seconds=10.0):
    deadline = time.monotonic() + allowed(seconds)
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_by_pid_and_start(sleeper):
    seen = look(sleeper.pid)
    assert seen.parent == os.getpid()
    assert is_running(seen.pid, seen.start)
    assert not is_running(seen.pid, seen.start + 1)
    assert not send(seen._replace(start=seen.start + 1), signal.SIGKILL)
    assert send(seen, signal.SIGKILL)
    until(lambda: not is_running(seen.pid, seen.start))  # a zombie does not run
    sleeper.wait()
    assert look(sleeper.pid) is None
    assert not send(seen, signal.SIGKILL)


def test_descendants_are_found_through_generations_and_can_be_left_out():
    code = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        child = until(lambda: descendants(parent.pid))[0]
        family = [process.pid for process in descendants(os.getpid())]
        assert family.index(parent.pid) < family.index(child.pid)
        assert child.pid not in [process.pid for process in descendants(os.getpid(), without=[parent.pid])]
    finally:
        send(child, signal.SIGKILL)
        parent.wait()


TREE = """
import subprocess, sys, threading
def start():
    child = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & echo $$; wait"], stdout=subprocess.PIPE, text=True)
    started.append(child.stdout.readline())
    children.append(child)
    over.wait()
started, children, over = [], [], threading.Event()
threads = [threading.Thread(target=start) for _ in range(3)]
[thread.start() for thread in threads]
while len(started) < 3:
    pass
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def tree():
    """A process with three threads, each of which has a child with two children."""
    process = subprocess.Popen(
        [sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.readline() == b"ready\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_children_of_every_thread_are_found_and_the_lists_say_what_the_table_says(tree):
    found = descendants(tree.pid)
    assert len(found) == 9
    assert {(each.pid, each.start) for each in found} == {
        (each.pid, each.start) for each in descendants(tree.pid, process_table.scan())
    }
    left_out = found[0].pid
    assert len(descendants(tree.pid, without=[left_out])) == 6


def test_finding_descendants_costs_what_is_found_and_not_what_runs_on_the_machine(tree, monkeypatch):
    asked = []
    monkeypatch.setattr(process_table, "look", lambda pid: asked.append(pid) or look(pid))
    descendants(tree.pid)
    assert len(asked) == 9


def test_a_kernel_without_lists_of_children_has_its_table_scanned(tree, monkeypatch):
    monkeypatch.setattr(process_table, "_children", lambda pid: None)
    assert len(descendants(tree.pid)) == 9


def test_descendants_are_never_missed_while_others_come_and_go(tree):
    """The tree must be seen whole by every look, while a neighbour starts and reaps children all the time."""
    busy = "import subprocess\nwhile True: subprocess.run(['true'])"
    with subprocess.Popen([sys.executable, "-c", busy]) as neighbour:
        try:
            for _ in range(300):
                pids = {each.pid for each in descendants(os.getpid())}
                assert {tree.pid, neighbour.pid} <= pids
                assert len(pids) >= 11
        finally:
            neighbour.kill()


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(3)", "exited with code 3"), ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL")],
)
def test_how_a_program_ended_in_words(code, expected):
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], {})
    assert exit_text(*describe_exit(os.waitpid(pid, 0)[1])) == expected


def test_a_tied_program_dies_with_its_parent_even_when_that_is_killed():
    code = """
import os, subprocess, sys, time
from headrace.processes.spawn import spawn
child = spawn(["sleep", "60"], env=dict(os.environ), cwd="/", tied=True)
while b"sleep" not in open(f"/proc/{child.pid}/cmdline", "rb").read().split(b"\\0")[0]:
    time.sleep(0.01)
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = look(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not is_running(child.pid, child.start), 3)


def test_a_program_gets_session_cpus_directory_and_default_signals(tmp_path):
    cpu = min(os.sched_getaffinity(0))
    code = (
        "import os; print(os.getsid(0) == os.getpid(), os.sched_getaffinity(0), os.getcwd(), os.environ['X'],"
        "[l for l in open('/proc/self/status') if l.startswith('SigIgn')][0].split()[1])"
    )
    reading, writing = os.pipe()
    child = spawn(
        ["sh", "-c", f'exec {sys.executable} -S -c "{code}"'],
        env={"X": "y", "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        tied=True,
        cpus=[cpu],
        stdout=writing,
    )
    os.close(writing)
    with os.fdopen(reading) as out:
        session, cpus, *rest = out.read().split()
    assert child.wait() == 0
    assert (session, cpus) == ("True", f"{{{cpu}}}")
    assert rest[:2] == [str(tmp_path), "y"]
    assert int(rest[2], 16) & (1 << (signal.SIGTERM - 1)) == 0


def test_what_python_ignores_is_not_ignored_in_a_program(tmp_path):
    reading, writing = os.pipe()
    child = spawn(["grep", "SigIgn", "/proc/self/status"], env=dict(os.environ), cwd="/", tied=True, stdout=writing)
    os.close(writing)
    with os.fdopen(reading) as out:
        ignored = int(out.read().split()[1], 16)
    assert child.wait() == 0
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


def test_a_program_whose_control_group_is_not_there_is_not_started(tmp_path):
    reading, writing = os.pipe()
    child = spawn(
        ["echo", "started"], env={}, cwd="/", tied=True, stdout=writing, stderr=writing, groups=[tmp_path / "none"]
    )
    os.close(writing)
    with os.fdopen(reading) as out:
        assert out.read() == f"cannot enter the control group {tmp_path}/none: No such file or directory\n"
    assert child.wait() == 127


def test_a_program_that_is_not_there_says_so_and_exits_127(tmp_path):
    with (tmp_path / "err").open("wb") as err:
        child = spawn(["no-such-program"], env=dict(os.environ), cwd=tmp_path, tied=False, stderr=err)
    assert child.wait() == 127
    assert (tmp_path / "err").read_text() == "error: cannot start no-such-program: No such file or directory\n"


def in_agent(tmp_path, code, scene=None):
    """Runs a script as an agent would. Returns it and its log."""

    async def run():
        reaper = Reaper()
        with LogWriter(tmp_path / "log") as log:
            running = Running("0", argv=[sys.executable, "-c", code], env=dict(os.environ), cwd=str(tmp_path), log=log)
            reaper.watch(running, lambda: None)
            try:
                if scene is not None:
                    await scene(running)
                await asyncio.wait_for(running.ended.wait(), allowed(30))
            finally:
                running.close()  # its pipe, also when it has not ended in time
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        return running

    running = asyncio.run(run())
    return running, [line.split(b" ", 2) for line in (tmp_path / "log").read_bytes().splitlines()]


@pytest.mark.promise("runs", "no line of output is lost at the end, or mixed, and a full pipe blocks no program")
@pytest.mark.promise("sagemaker-differences", "absent here: last lines are lost")
def test_all_output_is_in_the_log_when_the_end_is_known(tmp_path):
    code = "import os, sys; os.write(2, b'e' * 9 + b'\\n'); os.write(1, b'last words without newline'); os._exit(5)"
    running, lines = in_agent(tmp_path, code)
    assert (running.exit_code, running.signal, running.told_to_stop) == (5, None, False)
    assert {(kind, text) for _, kind, text in lines} == {(b"e", b"e" * 9), (b"o", b"last words without newline")}
    assert b"last words without newline" in running.tail


def test_a_descendant_that_holds_the_pipe_does_not_delay_the_end(tmp_path):
    code = "import os, time\nchild = os.fork()\nif not child:\n    time.sleep(600)\nprint(child, flush=True)"
    running, lines = in_agent(tmp_path, code)
    assert running.exit_code == 0
    child = look(int(lines[0][2]))
    assert is_running(child.pid, child.start)
    send(child, signal.SIGKILL)


def test_a_program_that_is_told_to_stop_is_marked(tmp_path):
    async def scene(running):
        while not (tmp_path / "log").exists():
            await asyncio.sleep(0.01)
        running.terminate()

    running, _ = in_agent(tmp_path, "import time; print('up', flush=True); time.sleep(60)", scene)
    assert (running.signal, running.told_to_stop) == (signal.SIGTERM, True)


def test_leftovers_get_a_moment_and_are_then_killed():
    others = {process.pid for process in descendants(os.getpid())}  # servers that other tests share
    gentle = subprocess.Popen(["sleep", "0.3"])
    stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 60"])
    began = time.monotonic()

    def left():
        gentle.poll()
        return [each for each in descendants(os.getpid()) if each.state != "Z" and each.pid not in others]

    assert asyncio.run(end_leftovers(left, lambda: None)) >= 1
    assert 0.9 < time.monotonic() - began < allowed(5)
    assert gentle.wait() == 0
    assert stubborn.wait() == -signal.SIGKILL


def test_reaping_takes_adopted_children_too():
    pids = {os.posix_spawn("/bin/true", ["true"], {}) for _ in range(3)}
    seen = set()
    until(lambda: seen.update(pid for pid, _ in reap()) or seen >= pids)


STUBBORN_TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, {handler})
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("handler", "reached"),
    [("signal.SIG_DFL", True), ("signal.SIG_IGN", True), ("lambda *_: print('asked', flush=True)", False)],
    ids=["no handler", "ignored", "handler of its own"],
)
def test_to_ask_a_program_to_end_asks_its_children_too_unless_it_looks_after_them(handler, reached):
    code = STUBBORN_TREE.format(handler=handler)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = look(int(parent.stdout.readline()))
    try:
        asked = [process.pid for process in EndingTree(parent.pid).signalled]
        assert asked == ([parent.pid, child.pid] if reached else [parent.pid])
        if handler == "signal.SIG_DFL":  # what a parent ignores its child ignores too
            until(lambda: not is_running(child.pid, child.start))
        elif not reached:
            assert parent.stdout.readline() == "asked\n"
            assert is_running(child.pid, child.start)
    finally:
        send(child, signal.SIGKILL)
        parent.kill()
        parent.communicate()
    assert EndingTree(parent.pid).signalled == []


SAVES = """
import signal, sys, time
def save(*_):
    print("saving", "x" * 3_000_000, flush=True); time.sleep(0.2)
    print("saved", flush=True); open("done", "w").close(); sys.exit(0)
signal.signal(signal.SIGTERM, save); print("ready", flush=True)
while True: time.sleep(0.05)
"""
LAUNCHES = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "train.py"], stdout=subprocess.PIPE, text=True)
for line in child.stdout: print("|", line, end="", flush=True)
sys.exit(child.wait())
"""


@pytest.mark.promise("running", "SIGTERM reaches the script, also behind a shell, with time to save; then SIGKILL")
@pytest.mark.parametrize(
    "command",
    [
        "python train.py 2>&1 | tee log",
        "python train.py | cat | tee log",
        "python train.py | while read -r line; do echo $line; done",
        "python train.py > >(tee log)",
        "mkfifo pipe; tee log < pipe & python train.py > pipe; wait",
        "yes | python train.py",
        "python launch.py",
        "echo $(python launch.py); touch next",
        "x=$(python train.py); touch next",
        "x=$(true; python train.py; touch next); touch next",
        "{ x=$(python train.py); touch next; } | tee log",
        "coproc python train.py; read -u ${COPROC[0]} x; read -u ${COPROC[0]} x; touch next",
    ],
)
def test_what_a_program_that_saves_is_connected_with_by_pipes_ends_after_it(command, tmp_path):
    (tmp_path / "train.py").write_text(SAVES)
    (tmp_path / "launch.py").write_text(LAUNCHES)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", command + "; :"], cwd=tmp_path, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL
    )

    until(lambda: any(_runs_and_catches(each.pid) for each in descendants(shell.pid)))
    ending = EndingTree(shell.pid)
    members = [*ending.signalled, *ending.later]

    def over():
        shell.poll()
        ending.go_on()
        return not ending.is_running

    until(over)
    assert (tmp_path / "done").exists()
    assert not (tmp_path / "next").exists()
    assert len(members) > 1
    shell.wait()


def _runs_and_catches(pid):
    """Whether a process is train.py, not a part of the shell whose command names it, and has its handler by now."""
    with contextlib.suppress(OSError):
        status, arguments = (Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "cmdline"))
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return arguments.split("\0")[1:2] == ["train.py"] and caught & 1 << (signal.SIGTERM - 1)
    return False

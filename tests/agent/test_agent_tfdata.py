"""A server of tf.data.service as a process of its own, on SIGTERM. TensorFlow is played: it may block where no Python
handler of a signal runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TENSORFLOW = """
import ctypes, sys, threading, types

__version__ = "2.21.0"

def block():
    library, mutex, gate = ctypes.CDLL(None), ctypes.create_string_buffer(64), threading.Lock()
    gate.acquire()
    sys.setswitchinterval(1000)  # the other thread speaks when this one is outside of Python
    threading.Thread(target=lambda: gate.acquire() and print("blocked", flush=True), daemon=True).start()
    library.pthread_mutex_lock(mutex)
    gate.release()
    library.pthread_mutex_lock(mutex)  # as a worker that waits for its dispatcher; signals do not interrupt it

def worker(config):
    if config == "nobody:1":
        block()
    return types.SimpleNamespace(_num_tasks=lambda: 3)

service = types.SimpleNamespace(WorkerConfig=lambda dispatcher, **_: dispatcher, WorkerServer=worker)
data = types.SimpleNamespace(experimental=types.SimpleNamespace(service=service))
"""


@pytest.mark.parametrize(
    ("dispatcher", "said", "code"),
    [
        ("nobody:1", b"blocked\n", -signal.SIGTERM),
        ("somebody:1", b'{"event": "ready", "version": "2.21.0"}\n', 0),
    ],
)
def test_it_ends_at_once_when_it_is_told_to(tmp_path: Path, dispatcher: str, said: bytes, code: int) -> None:
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--dispatcher", dispatcher, "--status-fd", "1"]
    server = subprocess.Popen(
        [sys.executable, "-m", "headrace.agent.tf_data_server", *options],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == said
        if code == 0:
            assert server.stdout.readline() == b'{"event": "alive", "tasks": 3, "sent": 0}\n'
        server.terminate()
        assert server.wait(10) == code
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_it_imports_tensorflow_without_keras_which_no_server_uses(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "import os\nraise ImportError('its own Keras: ' + os.environ.get('TF_USE_LEGACY_KERAS', 'yes'))\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:  # an ordinary user may not listen on port 1
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-m", "headrace.agent.tf_data_server", "--port", str(port)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot import tensorflow" in done.stderr
    assert "its own Keras: 1; install it there" in done.stderr


NICED = """
import os, sys, threading, time, types

__version__ = "2.21.0"
print("import", os.getpriority(os.PRIO_PROCESS, 0), flush=True)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

def worker(config):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    print(*("threads", *sorted(os.getpriority(os.PRIO_PROCESS, thread) for thread in threads)), flush=True)
    return types.SimpleNamespace(_num_tasks=lambda: 3)

service = types.SimpleNamespace(WorkerConfig=lambda *_, **__: None, WorkerServer=worker)
data = types.SimpleNamespace(experimental=types.SimpleNamespace(service=service))
"""


def test_a_worker_beside_a_program_imports_at_its_pace_and_yields_to_it_then_with_all_its_threads(
    tmp_path: Path,
) -> None:
    (tmp_path / "tensorflow.py").write_text(NICED)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--dispatcher", "somebody:1", "--nice", "3"]
    server = subprocess.Popen(
        [sys.executable, "-m", "headrace.agent.tf_data_server", *options],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    before = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = min(19, before + 3)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == f"import {before}\n"
        assert set(server.stdout.readline().split()[1:]) == {str(lowered)}
    finally:
        server.kill()
        server.wait()
        server.stdout.close()

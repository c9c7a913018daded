"""What a run, a feed, a page and an endpoint make is their user's alone, whatever the umask: all of it is walked."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from effort import SOAK
from feed_servers import wait_until

from observer import abstract_sockets
from patience import allowed

JOB = """
job_name: open
source_dir: code
entry_point: train.py
instance_groups:
  - {name: dnn, type: ml.c5.xlarge, count: 1}
  - {name: data, type: ml.c5.xlarge, count: 1}
data_service: {feed: {enabled: true, workers_per_host: 1}, instance_groups: [data]}
completion: {instance_groups: [dnn]}
engines: {local: {isolation: none, stop_grace: 1}}
"""
TRAIN = """
import os, pathlib, time
(pathlib.Path(os.environ["SM_MODEL_DIR"]) / "weights").write_text("x")
print("at work", flush=True)
time.sleep(600)
"""
SHARED_MEMORY = Path("/dev/shm")


def reachable(folder: Path) -> Iterator[Path]:
    """Yields what another user can name below a folder: all to which no closed folder is on the way."""
    for path in folder.iterdir():
        yield path
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o001:
            yield from reachable(path)


def started(stack: ExitStack, base: Path, umask: int, ready: str, *arguments: str) -> None:
    """Starts a program of headrace, and waits until it says that it is ready."""
    environment = os.environ | {
        "HOME": str(base / "home"), "HEADRACE_HOME": str(base / "home" / "headrace"), "TMPDIR": str(base / "tmp"),
        "XDG_CACHE_HOME": str(base / "home" / "cache"),
    }  # fmt: skip
    log = base / "logs" / arguments[0]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments], cwd=base / "work", env=environment, umask=umask,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    stack.callback(process.wait, allowed(60))
    stack.callback(process.terminate)
    wait_until(lambda: re.search(ready, log.read_text()) or process.poll() is not None, f"{arguments[0]} is ready", 60)
    assert process.poll() is None, log.read_text()


@pytest.mark.promise("runs", "what a run, feed, page or endpoint writes is its user's alone, whatever the umask")
@pytest.mark.parametrize("umask", [0o000, *([0o022] if SOAK else [])])
def test_nobody_else_reads_or_writes_what_a_run_a_feed_a_page_and_an_endpoint_make(umask: int, tmp_path: Path) -> None:
    for name, mode in (("home", 0o755), ("work", 0o755), ("tmp", 0o1777), ("logs", 0o700)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    code = tmp_path / "work" / "code"
    code.mkdir(mode=0o755)
    (code / "train.py").write_text(TRAIN)
    (tmp_path / "work" / "job.yaml").write_text(JOB)
    own = {path for name in ("work", "tmp", "home") for path in (tmp_path / name).rglob("*")}
    before = set(SHARED_MEMORY.iterdir())
    with ExitStack() as stack:
        secret = [sys.executable, "-m", "headrace", "feed", "secret", "feed.secret"]
        subprocess.run(secret, cwd=tmp_path / "work", umask=umask, check=True, stdout=subprocess.DEVNULL)
        started(stack, tmp_path, umask, "at work", "run", "job.yaml")
        started(stack, tmp_path, umask, "ready", "feed", "serve", "--bind", "127.0.0.1:0", "--executors", "1",
                "--secret-file", "feed.secret")  # fmt: skip
        started(stack, tmp_path, umask, "http", "ui", "--no-open")
        started(stack, tmp_path, umask, "http", "serve", "--port", "0")
        told = []
        for path in [path for name in ("home", "work", "tmp") for path in reachable(tmp_path / name)]:
            status = path.lstat()
            is_open = status.st_uid != os.geteuid() or status.st_mode & 0o077
            if is_open and path not in own and not stat.S_ISLNK(status.st_mode):
                told.append(f"{stat.filemode(status.st_mode)} {status.st_uid} {path.relative_to(tmp_path)}")
        assert told == []
        for path in set(SHARED_MEMORY.iterdir()) - before:
            assert not path.stat().st_mode & 0o077, path
        names = [name for name in abstract_sockets() if name.startswith("@headrace/open-")]
        assert names
        assert [name for name in names if not re.search("/[0-9a-f]{20}$", name)] == [], "nobody can take it before"

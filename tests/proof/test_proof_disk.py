"""Full disks and a tiny /dev/shm: batches need neither, a log that cannot be written harms nobody."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from effort import SOAK
from feed_servers import wait_until
from full_disk import with_full_disk
from training import feed_hosts, remote, training

MANY = {"floats": 16384, "delay": 0.001}  # 64 KB a sample, 512 KB a batch: more on the way than /dev/shm holds


@pytest.mark.promise("feed-guarantees", "neither /dev/shm nor a disk is needed")
@pytest.mark.namespaces
def test_local_workers_need_no_disk(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    loader = {"workers": "local", "num_workers": 2}
    prefix = with_full_disk(full, log=True)
    with training(tmp_path, loader=loader, endless=True, dataset=MANY, prefix=prefix) as trainer:
        trainer.wait_steps(5)
        assert Path(f"/proc/{trainer.process.pid}/cwd").readlink() == full
        os.kill(trainer.local_executors()[0].pid, signal.SIGKILL)
        trainer.wait_steps(20)
        trainer.finish()


@pytest.mark.promise("feed-guarantees", "neither /dev/shm nor a disk is needed")
@pytest.mark.namespaces
def test_a_feed_server_whose_log_is_on_a_full_disk_goes_on_serving(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    with (
        feed_hosts(tmp_path, 1, prefix=with_full_disk(full, log=True)) as [host],
        training(tmp_path, loader=remote([host]), endless=True, dataset=MANY) as trainer,
    ):
        trainer.wait_steps(5)
        for _ in range(3):  # each of these is told in the log
            with socket.create_connection((host.address, host.port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: host-1\r\n\r\n")
                stranger.settimeout(5)
                with suppress(ConnectionResetError):  # it is closed with words unread
                    while stranger.recv(4096):
                        pass
        host.executors()[0].kill()
        wait_until(lambda: host.event("executor_lost"), "the server has noticed")
        trainer.wait_steps(20)
        trainer.finish()
        assert host.process.poll() is None
        assert host.event("ready"), "what has a place to go is still told"


if SOAK:  # in every run: other errors of a dataset (tests/feed)

    @pytest.mark.parametrize("workers", [2, *([0] if SOAK else [])])
    def test_a_full_disk_that_the_dataset_meets_reaches_the_trainer_as_that_error(workers: int, tmp_path: Path) -> None:
        loader = {"workers": "local", "num_workers": workers}
        with training(tmp_path, loader=loader | {"shuffle": False}, pipeline="full_disk") as trainer:
            assert trainer.process.wait(60) == 1
            assert "OSError: [Errno 28] No space left on device: '/cache/120'" in trainer.told()
            assert trainer.steps == 15

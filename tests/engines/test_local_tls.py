"""Control is under TLS, with encrypt_inter_container_traffic the feed too, by certificates of the run only."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import ssl
import stat
from pathlib import Path

import pytest
from run_places import WITHOUT_TORCH, flag
from stage import groups, said, text

from agent_connection import connect
from headrace.agent.control.control_messages import Hello, Report
from headrace.engines.planning.host_certificates import make_certificates
from headrace.instance.launch_plan import certificate_files, read_certificates
from headrace.runs import Status
from headrace.runs.events import FeedReady
from patience import until

WAIT = """
import os, time
print("running", flush=True)
while not os.path.exists("enough"):
    time.sleep(0.02)
"""
DATA = """
import numpy
from headrace import feed
class Squares:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return numpy.int64(index * index)
@feed.pipeline
def squares():
    return Squares()
"""
TRAIN = """
import os
from data import squares
from headrace import feed
loader = feed.DataLoader(squares(), batch_size=8, collate_fn=feed.stack_arrays)
total = sum(int(batch.sum()) for batch in loader)
print("total", total, os.path.basename(os.environ["HEADRACE_FEED_TLS_CA"]), flush=True)
"""


def secured(stage, script=WAIT, **fields):
    return stage.start(script, encrypt_inter_container_traffic=True, **fields)


def serving(stage, script=WAIT, **fields):
    return secured(
        stage,
        script,
        instance_groups=groups(dnn=1, data=1),
        data_service={"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": ["data"]},
        **fields,
    )


def enough(handle):
    flag(handle, "enough")


def certificate_seen(address, port, ca, name):
    context = ssl.create_default_context(cafile=ca)
    with socket.create_connection((address, port), 5) as plain, context.wrap_socket(plain, server_hostname=name) as tls:
        return tls.version()


def test_batches_come_over_tls_and_the_files_are_closed_to_others(stage):
    code = Path(stage.folder) / "code"
    code.mkdir()
    (code / "data.py").write_text(DATA)
    handle = serving(stage, TRAIN, environment=WITHOUT_TORCH)
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    assert f"total {sum(n * n for n in range(64))} ca.pem" in text(handle)
    for host in ("algo-1", "algo-2"):
        files = certificate_files(handle.paths.host(host))
        assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    stage.assert_nothing_left(handle)


def test_both_ports_speak_tls_only_and_show_the_certificate_of_their_host(stage):
    handle = serving(stage, environment=WITHOUT_TORCH)
    until(said(handle, "running"))
    until(lambda: [event for event in handle.run.events() if isinstance(event, FeedReady)], 60)
    ca = certificate_files(handle.paths.host("algo-1")).ca
    assert certificate_seen(f"{stage.prefix}.2", 7070, ca, "algo-2") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        certificate_seen(f"{stage.prefix}.2", 7070, ca, "algo-1")
    with pytest.raises(ssl.SSLCertVerificationError):
        certificate_seen(f"{stage.prefix}.1", 7071, None, "algo-1")
    enough(handle)
    assert handle.wait(20) is Status.COMPLETED


def talks(address, tls) -> bool:
    """Tells whether a new agent gets an answer of the coordinator."""

    async def talk() -> bool:
        async with connect(address, "algo-1", tls, os.urandom(16)) as connection:
            await connection.send(Report(1, Hello("dnn")))
            await asyncio.wait_for(connection.receive(), 1)
        return True

    try:
        return asyncio.run(talk())
    except (asyncio.TimeoutError, ConnectionError):
        return False


def test_on_the_control_port_of_a_job_without_the_wish_who_is_no_host_is_refused_at_the_handshake(stage):
    handle = stage.start(WAIT, instance_groups=groups(dnn=2))
    until(lambda: text(handle).count("running") == 2)
    before = handle.run.events()
    ours = read_certificates(handle.paths.host("algo-2"))
    other = make_certificates(handle.run.id, ["algo-2"])["algo-2"]
    assert not talks(f"{stage.prefix}.1:7071", dataclasses.replace(other, ca=ours.ca))
    assert not talks(f"{stage.prefix}.1:7071", other), "an agent says nothing to a coordinator of another run"
    with socket.create_connection((f"{stage.prefix}.1", 7071)) as raw:
        raw.sendall(os.urandom(4096))
    log = handle.paths.engine / "supervisor.log"  # of the coordinator, too
    assert "refused" not in log.read_text()  # nothing of theirs was read
    assert not talks(f"{stage.prefix}.1:7071", ours)
    until(lambda: "another process than the agent of algo-2" in log.read_text())
    assert handle.run.events() == before
    enough(handle)
    assert handle.wait(20) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle)

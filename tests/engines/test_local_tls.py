"""encrypt_inter_container_traffic: control and feed connections under TLS, with certificates of this job only."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import sys
from pathlib import Path

import pytest
from run_places import WITHOUT_TORCH, flag
from stage import groups, said, text, until

from headrace import engines
from headrace.agent.control.control_messages import Direction, Hello, Link, Report
from headrace.agent.control.grpc_transport import connect
from headrace.errors import EngineRefused
from headrace.hosting.inputs.host_certificates import make_certificates
from headrace.instance.certificates import Certificates, certificate_files, read_certificates
from headrace.instance.launch_plan import read_secret
from headrace.runs import Status
from headrace.runs.events import FeedReady

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


def test_both_ports_speak_tls_only_and_show_a_certificate_of_this_job_for_their_address(stage):
    handle = serving(stage, environment=WITHOUT_TORCH)
    until(said(handle, "running"))
    until(lambda: [event for event in handle.run.events() if isinstance(event, FeedReady)], 60)
    ca = certificate_files(handle.paths.host("algo-1")).ca
    assert certificate_seen(f"{stage.prefix}.2", 7070, ca, f"{stage.prefix}.2") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        certificate_seen(f"{stage.prefix}.2", 7070, ca, f"{stage.prefix}.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        certificate_seen(f"{stage.prefix}.1", 7071, None, f"{stage.prefix}.1")
    enough(handle)
    assert handle.wait(20) is Status.COMPLETED


def talks(address, secret, tls) -> bool:
    """Tells whether a new agent gets an answer of the coordinator."""

    async def talk() -> bool:
        link = Link(secret, Direction.TO_COORDINATOR, "algo-2", os.urandom(16))
        async with connect(address, link, tls) as connection:
            try:
                await asyncio.wait_for(connection.send(Report(1, Hello("dnn"))), 2)
                await asyncio.wait_for(connection.receive(), 2)
            except (asyncio.TimeoutError, ConnectionError):
                return False
        return True

    return asyncio.run(talk())


def strangers_certificates(stage, name) -> Certificates:
    """Certificates for the same addresses, made by somebody else."""
    job = stage.job(WAIT, instance_groups=groups(dnn=2), encrypt_inter_container_traffic=True)
    return make_certificates(engines.plan(job).plan)[name]


@pytest.mark.parametrize("how", ["without TLS", "without a certificate", "certificate of another job"])
def test_who_has_no_certificate_of_this_job_is_refused_even_with_its_secret_and_harmless(stage, how):
    handle = secured(stage, instance_groups=groups(dnn=2))
    until(lambda: text(handle).count("running") == 2)
    base = handle.paths.host("algo-2")
    mine = read_certificates(base)
    wrong = {
        "without TLS": None,
        "without a certificate": Certificates(mine.ca, None, None),
        "certificate of another job": Certificates(
            mine.ca, (other := strangers_certificates(stage, "algo-2")).certificate, other.key
        ),
    }[how]
    before = handle.run.events()

    assert not talks(f"{stage.prefix}.1:7071", read_secret(base), wrong)
    with socket.create_connection((f"{stage.prefix}.1", 7071)) as raw:
        raw.sendall(os.urandom(4096))
    assert handle.run.events() == before
    assert "refused" not in text(handle)  # no message of theirs came as far as the check of the secret
    enough(handle)
    assert handle.wait(20) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle)


def test_an_agent_does_not_speak_to_a_coordinator_of_another_job(stage):
    handle = secured(stage, instance_groups=groups(dnn=2))
    until(lambda: text(handle).count("running") == 2)
    other = strangers_certificates(stage, "algo-2")
    assert not talks(f"{stage.prefix}.1:7071", b"s" * 32, other)
    assert "refused" not in text(handle)  # nothing was sent
    assert not talks(f"{stage.prefix}.1:7071", b"s" * 32, read_certificates(handle.paths.host("algo-2")))
    until(said(handle, "control port: refused"))  # with the certificates, but not the secret
    enough(handle)
    assert handle.wait(20) is Status.COMPLETED


def test_a_job_without_the_wish_has_no_certificates(stage):
    handle = stage.start("pass")
    assert handle.wait(20) is Status.COMPLETED
    assert not certificate_files(handle.paths.host("algo-1")).key.exists()


def test_without_the_library_that_makes_certificates_the_job_is_refused(stage, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(EngineRefused, match="cryptography") as refused:
        secured(stage)
    assert "pip install" in refused.value.hint

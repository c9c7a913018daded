"""Nodes are lost, and the run goes on with another attempt in pods that take the place of theirs: on a real cluster."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_table_kubernetes import KubernetesNodes, KubernetesPlatform
from engine_table_play import Play
from engine_table_shapes import WAITING
from team import kubectl

from headrace.runs import Status
from headrace.runs.events import AttemptStarted
from needs import require
from patience import until

pytestmark = pytest.mark.timeout(1200)

STORE = "http://10.90.0.254:5555"  # the address of the control plane, where these tests run
KEYS = {"AWS_ENDPOINT_URL": STORE, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
AWAY = 240.0  # until Kubernetes has given up a node and another pod has begun
RETRY = {"retry": {"attempts": 1}}


@pytest.fixture
def platform() -> Iterator[KubernetesPlatform]:
    with KubernetesNodes().open(Path(tempfile.mkdtemp(prefix="hk-"))) as opened:
        assert isinstance(opened, KubernetesPlatform)
        yield opened


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket that pods and this machine reach; its keys are a Secret of the namespace, and variables here."""
    require("moto")
    import botocore.session

    for name, value in {**KEYS, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-keys"}, "stringData": KEYS}
    with tempfile.TemporaryFile() as log:
        words = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5555"]
        server = subprocess.Popen(words, stdout=log, stderr=log)
        client = botocore.session.get_session().create_client("s3", "us-east-1")

        def made() -> bool:
            with contextlib.suppress(Exception):
                client.create_bucket(Bucket="bucket")
                return True
            return False

        try:
            until(made, 60, "an S3 server")
            kubectl("apply", "-f", "-", given=secret)
            yield "s3://bucket/runs"
        finally:
            client.close()
            kubectl("delete", "secret", "s3-keys", "--ignore-not-found")
            server.kill()
            server.wait()


def lose_and_go_on(play: Play, platform: KubernetesPlatform, host: str) -> None:
    """Takes the power from the node of a host, and lets the programs of the next attempt end."""
    play.said("running", 2)
    platform.kill_node(play.run, host)
    play.until(lambda: attempts(play) == 2, "another attempt", AWAY)
    play.until(lambda: play.text().count("running") == 4, "the programs of the next attempt", AWAY)
    play.go_on()
    assert play.wait(60) == 0, str(play)
    assert play.run.status is Status.COMPLETED
    play.assert_nothing_left()
    platform.mend()


def attempts(play: Play) -> int:
    return max((each.number for each in play.run.events() if isinstance(each, AttemptStarted)), default=1)


def test_a_host_whose_node_is_lost_gets_another_pod_for_the_next_attempt(platform: KubernetesPlatform) -> None:
    play = Play(platform, "host-lost")
    play.submit(WAITING.having(**RETRY).document(play.name, platform.folder))
    lose_and_go_on(play, platform, "algo-2")


def test_a_leader_whose_node_is_lost_goes_on_where_the_record_is_stored(
    platform: KubernetesPlatform, bucket: str
) -> None:
    play = Play(platform, "leader-lost")
    job = WAITING.having(**RETRY, record={"uri": bucket, "interval": 1}).document(play.name, platform.folder)
    platform.keys = ["s3-keys"]
    play.submit(job)
    lose_and_go_on(play, platform, "algo-1")

"""The engine on the tests' own API server: what becomes of a run when submission, cluster, pods or people go away.

Pods are played: by hand, or with what a real cluster said of them (kubernetes_traces).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from effort import SOAK
from kube_server import NOT_IN_ROLE, Exec, Fault, KubeServer, run_process
from kube_traces import replay

from headrace import engines
from headrace.engines.asking import AskEngine
from headrace.engines.kubernetes import kubernetes_engine, refresh_run, watch_run
from headrace.engines.kubernetes.cluster import ClusterRefused, ExecFailed, KubernetesUnreachable, disconnect
from headrace.engines.kubernetes.pack_run import MOST_BYTES
from headrace.engines.kubernetes.refresh_run import KubeTicket, read_leader
from headrace.engines.kubernetes.send_record import FETCHED, LastWord, encode_last_word, write_last_word
from headrace.engines.kubernetes.submit_run import option_of
from headrace.engines.platform_news import alone, platform_news
from headrace.engines.ticket import read_ticket, write_ticket
from headrace.errors import EngineRefused, StorageError
from headrace.instance.storage import Store
from headrace.job import Job, load_job
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, list_runs
from headrace.runs.events import (
    ArtefactsStored,
    AttemptStarted,
    HostNotCollected,
    HostRegistered,
    RunFinished,
    StatusChanged,
)
from headrace.runs.segment_writer import SegmentWriter
from objectstore import ObjectStore
from patience import until

OPTIONS = {"namespace": "train", "image": "local/host:1", "python": sys.executable, "max_pending": 3600}
GROUPS = [
    {"name": "dnn", "type": "ml.c5.xlarge", "count": 1},
    {"name": "data", "type": "ml.c5.xlarge", "count": 1},
]


class Play:
    """The cluster, a job for it, and the pods that a test plays."""

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.there = RunPaths(folder / "pod")
        self.asked: list[list[str]] = []
        self.stop_code = 0
        server.run = self._run

    def job(self, **fields: Any) -> Job:
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text("print('hello')\n")
        data = {
            "job_name": "demo", "source_dir": str(code), "entry_point": "train.py", "instance_groups": GROUPS,
            "engines": {"kubernetes": {**OPTIONS, **fields.pop("options", {})}}, **fields,
        }  # fmt: skip
        file = self.folder / "job.yaml"
        file.write_text(yaml.safe_dump(data))
        return load_job(file)

    def start(self, detach: bool = False, **fields: Any) -> Run:
        return engines.start(self.job(**fields), "kubernetes", detach).run

    def pod(self, run: Run, host: str = "algo-1", name: str = "", **status: Any) -> str:
        """Makes a pod of a host, or changes it. Returns its name."""
        label = read_ticket(run.paths, KubeTicket).name
        name = name or f"{label}-{host}-abc"
        if ("pods", "train", name) in self.server.objects:
            self.server.change("pods", name, status={"phase": "Pending", **status})
        else:
            meta = {"name": name, "labels": {"headrace/run": label, "headrace/host": host}}
            owners = [{"uid": self.server.objects["jobs", "train", f"{label}-algo-1"]["metadata"]["uid"]}]
            self.server.put("pods", {"metadata": {**meta, "ownerReferences": owners}, "spec": {"nodeName": "n1"},
                                     "status": {"phase": "Pending", **status}})  # fmt: skip
        return name

    def running(self, run: Run) -> str:
        """The leader's pod runs, with a record of its own."""
        self.there.root.mkdir(exist_ok=True)
        for name in ("engine", "events", "logs/dnn/algo-1"):
            (self.there.root / name).mkdir(parents=True, exist_ok=True)
        (self.there.root / "logs/dnn/algo-1/0.log").write_text("2026-11-22T10:00:00.000000Z o hello\n")
        self.here = run.paths
        self.pod(run, "algo-2", phase="Running")
        return self.pod(run, phase="Running")

    def end(self, status: Status = Status.COMPLETED) -> None:
        with EventWriter(self.there.events("engine")) as events:
            events.write(RunFinished(t=time.time(), status=status))
        write_last_word(self.there, LastWord(status), self.folder / "word")

    def ended(self, run: Run, word: LastWord, phase: str = "Succeeded") -> None:
        """The leader's pod has ended with a last word."""
        ended = {"exitCode": int(phase == "Failed"), "message": encode_last_word(word).decode()}
        self.pod(run, phase=phase, containerStatuses=[{"name": "host", "state": {"terminated": ended}}])

    def job_complete(self, run: Run) -> None:
        """The leader's Job has ended well."""
        name = f"{read_ticket(run.paths, KubeTicket).name}-algo-1"
        self.server.change("jobs", name, status={"conditions": [{"type": "Complete", "status": "True"}]})

    async def _run(self, given: Exec) -> int:
        if "headrace.agent.ask" in given.command:
            self.asked.append(given.command[given.command.index("headrace.agent.ask") + 1 :])
            await given.send(2, b"error: the coordinator has not taken the command\n" * bool(self.stop_code))
            return self.stop_code
        link = self.folder / "pods" / self.here.id
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(self.there.root)
        command = [each.replace(str(self.here.root), str(link)) for each in given.command]
        return await run_process(given, command, {**os.environ, "HEADRACE_PYTHON": sys.executable})

    def left(self) -> list[str]:
        return sorted(f"{plural}/{name}" for plural, _, name in self.server.objects)


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    with KubeServer(tmp_path_factory.mktemp("kube")) as server:
        yield server


@pytest.fixture
def play(module_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    monkeypatch.setenv("KUBECONFIG", str(module_server.kubeconfig()))
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("headrace.engines.kubernetes.cluster.PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(refresh_run, "CLEAN_SECONDS", 0.0)
    for each in (module_server.objects, module_server.denied, module_server.faults, module_server.logs):
        each.clear()
    module_server.denied.add(NOT_IN_ROLE)
    module_server.quota = module_server.drops = module_server.security = ""
    yield Play(module_server, tmp_path)
    disconnect()


def killed_submitter(run: Run) -> None:
    """The process that submitted the run is gone."""
    write_ticket(run.paths, msgspec.structs.replace(read_ticket(run.paths, KubeTicket), start=1.0))


def pending(run: Run) -> str:
    return [event.message for event in run.events() if isinstance(event, StatusChanged)][-1]


# --- submission ---------------------------------------------------------------------------------------------------


def test_a_job_that_the_cluster_would_not_take_is_refused_before_anything_is_made(play: Play) -> None:
    play.server.denied |= {("create", "jobs"), ("get", "pods/log")}
    with pytest.raises(EngineRefused, match=r"get pods/log; create jobs.batch") as caught:
        engines.check(play.job(), "kubernetes")
    assert "the page kubernetes of the docs" in caught.value.hint
    play.server.denied.clear()
    with pytest.raises(ClusterRefused, match='namespaces "nowhere" not found'):
        engines.check(play.job(options={"namespace": "nowhere"}), "kubernetes")
    volumes = {"data": {"mount_path": "/data", "claim": "training-data"}}
    with pytest.raises(EngineRefused, match="has no PersistentVolumeClaim training-data"):
        engines.check(play.job(options={"volumes": volumes}), "kubernetes")
    play.server.put("persistentvolumeclaims", {"metadata": {"name": "training-data"}})
    engines.check(play.job(options={"volumes": volumes}), "kubernetes")
    play.server.quota = "jobs"
    with pytest.raises(ClusterRefused, match="exceeded quota"):
        engines.start(play.job(), "kubernetes")
    assert play.left() == ["persistentvolumeclaims/training-data"]
    assert list_runs() == []


@pytest.mark.parametrize(
    ("option", "kind", "plural"),
    [("priority_class", "PriorityClass", "priorityclasses"), ("runtime_class", "RuntimeClass", "runtimeclasses")],
)
def test_a_class_that_the_cluster_does_not_have_is_refused(play: Play, option: str, kind: str, plural: str) -> None:
    job = play.job(options={option: "fast"})
    with pytest.raises(EngineRefused, match=f"the cluster has no {kind} fast"):
        engines.check(job, "kubernetes")
    play.server.denied.add(("get", plural))
    engines.check(job, "kubernetes")
    play.server.denied.clear()
    play.server.put(plural, {"metadata": {"name": "fast"}}, "")
    engines.check(job, "kubernetes")


def test_code_that_is_too_large_for_a_secret_is_refused_before_there_is_a_run_and_leaves_out_what_a_run_does(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = play.job()
    (play.folder / "code" / ".git").mkdir()
    (play.folder / "code" / ".git" / "pack").write_bytes(os.urandom(MOST_BYTES))
    runs = play.folder / "code" / "runs"  # as with HEADRACE_HOME in the folder of the code
    (runs / "demo-1").mkdir(parents=True)
    (runs / "demo-1" / "weights").write_bytes(os.urandom(MOST_BYTES))
    monkeypatch.setenv("HEADRACE_HOME", str(play.folder / "code"))
    engines.check(job, "kubernetes")
    monkeypatch.setenv("HEADRACE_HOME", str(play.folder / "home"))
    for ask in (engines.check, engines.plan):
        with pytest.raises(EngineRefused, match="too large to travel") as caught:
            ask(job, "kubernetes")
        assert "s3://" in caught.value.hint


@pytest.mark.parametrize("number", [1, 2, 4, 7] if SOAK else [1, 7])
def test_a_submission_that_fails_half_way_leaves_nothing(play: Play, number: int) -> None:
    checked = play.job()
    engines.check(checked, "kubernetes")
    made = 0

    def count(_: object) -> None:
        nonlocal made
        made += 1
        if made == number:
            play.server.faults.append(Fault(422, verb="create"))

    play.server.created.append(count)
    try:
        with pytest.raises(EngineRefused):
            engines.start(checked, "kubernetes")
    finally:
        play.server.created.remove(count)
    assert play.left() == []
    assert list_runs() == []


FIELD = "spec.template.spec.tolerations[0].effect"
INVALID = f'Job.batch "demo-algo-1" is invalid: {FIELD}: Unsupported value: "NoSchedul"'
HOOK = 'admission webhook "images.example.com" denied the request: images must come from registry.example.com'
QUOTA = 'jobs.batch "demo-algo-1" is forbidden: exceeded quota: small, requested: count/jobs.batch=1, limited: 0'


def status(code: int, reason: str, message: str, **details: object) -> dict[str, object]:
    """What an API server answers that refuses an object."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "details": details, "code": code,
    }  # fmt: skip


OF_FIELD = {"reason": "FieldValueNotSupported", "message": "Unsupported value", "field": FIELD}


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (status(422, "Invalid", INVALID, kind="Job", causes=[OF_FIELD]), "comes from engines.kubernetes.tolerations"),
        (status(400, "", HOOK), "a rule of the cluster (an admission webhook)"),
        (status(403, "Forbidden", QUOTA, kind="jobs"), "a quota, or a rule of the cluster"),
    ],
    ids=["field", "hook", "quota"],
)
def test_what_only_the_cluster_refuses_is_told_with_object_field_and_key_and_nothing_is_left(
    play: Play, answer: dict[str, Any], hint: str, dry: bool
) -> None:
    fault = Fault(answer, verb="create", resource="jobs")

    def later(made: dict[str, Any]) -> None:  # what the checks did not see: the rule is a moment old
        if made["kind"] == "Service":
            play.server.faults.append(fault)

    if dry:
        play.server.faults.append(fault)
    else:
        play.server.created.append(later)
    try:
        with pytest.raises(ClusterRefused) as caught:
            engines.start(play.job(), "kubernetes")
    finally:
        play.server.created[:] = [each for each in play.server.created if each is not later]
    assert caught.value.message.startswith("cannot create the Job demo-")
    assert caught.value.message.endswith(f"in the namespace train: {answer['message']}")
    assert hint in caught.value.hint
    assert (play.left(), list_runs()) == ([], [])


def test_a_field_of_a_patch_that_the_cluster_would_leave_out_is_refused(play: Play) -> None:
    job = play.job(options={"pod": {"tolerationz": []}})
    play.server.drops = "spec.podReplacementPolicy"  # headrace's own: older servers do without
    engines.check(job, "kubernetes")
    play.server.drops = "spec.template.spec.tolerationz"
    with pytest.raises(ClusterRefused, match=r"this cluster knows no field spec.template.spec.tolerationz") as caught:
        engines.check(job, "kubernetes")
    assert "comes from engines.kubernetes.pod.tolerationz of the job" in caught.value.hint
    assert play.left() == []


@pytest.mark.promise("kubernetes-reference", "on Kubernetes warnings of the API server name the key that helps")
def test_what_the_cluster_warns_of_is_passed_on_once_with_the_object_and_the_key_with_which_pods_pass(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    play.server.security, play.server.drops = "warn", "spec.podReplacementPolicy"
    engines.start(play.job(options={"pip": True, "groups": {"data": {"user": 1000}}}), "kubernetes")
    (told,) = [record.getMessage() for record in caplog.records]
    assert re.match(r"the cluster warns of the Job demo-algo-1: would violate PodSecurity .*: allowPriv", told)
    assert told.endswith("pods pass with engines.kubernetes.user: 1000 (or the same of a group)")
    caplog.clear()
    engines.check(play.job(job_name="other", options={"pip": True, "user": 1000}), "kubernetes")
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.promise("kubernetes-reference", "on Kubernetes warnings of the API server name the key that helps")
def test_pods_that_a_namespace_will_never_take_end_the_run_at_once_and_are_refused_before_it_where_that_can_be_asked(
    play: Play,
) -> None:
    play.server.security = "enforce"  # such a namespace takes the Jobs
    run = play.start()
    engines.refresh(run)
    assert (run.status, run.cause.kind) == (Status.FAILED, CauseKind.INSTANCE_NOT_STARTED)
    assert 'is forbidden: violates PodSecurity "restricted:latest"' in str(run.cause)
    assert "pods pass with engines.kubernetes.user: 1000" in str(run.cause)
    assert [line for line in play.left() if not line.startswith("events/")] == []
    play.server.denied.clear()
    with pytest.raises(ClusterRefused, match=r'cannot create the Pod .* violates PodSecurity "restricted') as caught:
        engines.start(play.job(), "kubernetes")
    assert "engines.kubernetes.user: 1000" in caught.value.hint
    engines.check(play.job(options={"user": 1000}), "kubernetes")


@pytest.mark.parametrize("words", ["exceeded quota: small", 'admission webhook "owned" denied the request'])
def test_what_may_hold_for_a_pod_without_a_job_only_or_pass_is_a_warning(
    play: Play, caplog: pytest.LogCaptureFixture, words: str
) -> None:
    play.server.denied.clear()
    play.server.faults.append(Fault(status(403, "Forbidden", words), verb="create", resource="pods"))
    engines.check(play.job(), "kubernetes")
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("the cluster warns of the Pod demo-")
    assert words in told


def test_the_key_of_a_refused_field_is_found_in_pods_containers_and_sets() -> None:
    names = {
        "spec.template.spec.containers[0].resources.limits[cpu]": "resources",
        "spec.template.spec.containers[0].livenessProbe": "container.livenessProbe",
        "spec.replicatedJobs[1].template.spec.template.spec.nodeSelector": "node_selector",
        "spec.template.spec.dnsPolicy": "pod.dnsPolicy",
    }
    assert {field: option_of(field) for field in names} == {k: f"engines.kubernetes.{v}" for k, v in names.items()}
    assert [option_of(field) for field in ("spec.backoffLimit", "data", "")] == ["", "", ""]


def test_what_cannot_be_deleted_after_a_failed_submission_is_named(play: Play) -> None:
    job = play.job()

    def cut(made: dict[str, Any]) -> None:
        if made["kind"] == "Secret":
            play.server.faults.append(Fault(500, times=1000))

    play.server.created.append(cut)
    try:
        with pytest.raises(EngineRefused, match="cannot be deleted") as caught:
            engines.start(job, "kubernetes")
    finally:
        play.server.created.remove(cut)
        play.server.faults.clear()
    assert re.search(r"delete job demo-\S+-algo-1$", caught.value.hint)


def test_an_answer_that_is_lost_is_no_second_object(play: Play) -> None:
    play.server.faults += [Fault("after half", verb="create", resource="configmaps"),
                           Fault("after 500", verb="create", resource="jobs", times=2)]  # fmt: skip
    run = play.start()
    assert sum(line.startswith("jobs/") for line in play.left()) == 2
    owners = [each["metadata"].get("ownerReferences", [{}])[0].get("name") for each in play.server.of("secrets")]
    assert owners == [f"{read_ticket(run.paths, KubeTicket).name}-algo-1"] * len(owners)
    assert read_ticket(run.paths, KubeTicket).submitted
    assert play.server.faults == []


KILLED_AT = {0: "before the owner", 1: "after the owner, whose pod waits", 7: "before the last", 8: "after the last"}


@pytest.mark.promise("engines", "the submitting process is killed, on kubernetes")
@pytest.mark.parametrize("number", sorted(KILLED_AT) if SOAK else [1, 8])
def test_a_submission_that_is_killed_is_found_again_or_leaves_nothing(play: Play, number: int) -> None:
    made: list[object] = []
    processes: list[subprocess.Popen[bytes]] = []

    def kill(each: dict[str, Any]) -> None:
        made.append(each)
        if len(made) == number:
            processes[0].kill()
            processes[0].wait()

    play.job()
    at_once = "submit_run._make = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    code = (
        "import os, signal, sys\nfrom headrace import engines\nfrom headrace.engines.kubernetes import submit_run\n"
        f"from headrace.job import load_job\n{at_once if not number else ''}"
        "engines.start(load_job(sys.argv[1]), 'kubernetes')\nsys.stdin.read()\n"
    )
    play.server.created.append(kill)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(play.folder / "job.yaml")], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        processes.append(process)
        if number == 8:
            until(lambda: len(made) >= 8, 60)
        process.communicate(timeout=60) if number != 8 else process.kill()
        process.communicate()
    finally:
        play.server.created.remove(kill)
    (run,) = list_runs(alive=lambda _: True)
    assert len(made) == number
    engines.refresh(run)
    if number == 8:
        assert read_ticket(run.paths, KubeTicket).submitted
        assert engines.alive(run)
        assert engines.stop(run)
    else:
        assert not engines.alive(run)
        assert "killed while it submitted" in str(run.cause)
    assert play.left() == []


def test_a_run_that_is_being_submitted_is_left_alone(play: Play) -> None:
    run = play.start()
    write_ticket(run.paths, msgspec.structs.replace(read_ticket(run.paths, KubeTicket), submitted=False))
    before = play.left()
    engines.refresh(run)
    assert engines.alive(run)
    with pytest.raises(EngineRefused, match="is being submitted"):
        engines.stop(run)
    assert play.left() == before


# --- waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("engines", "queue, on kubernetes")
def test_a_run_says_why_it_waits_in_the_words_of_the_cluster(play: Play) -> None:
    run = play.start()
    engines.refresh(run)
    assert run.status is Status.IN_PROGRESS
    assert pending(run) == "algo-1, algo-2: its pod is starting"
    trace = [*replay("unschedulable_resources")][-1]
    (real,) = trace.pods.values()
    play.pod(run, **real["status"])
    image = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}}}
    play.pod(run, "algo-2", containerStatuses=[image])
    engines.refresh(run)
    assert "algo-1: Unschedulable: 0/2 nodes are available" in pending(run)
    assert 'algo-2: ImagePullBackOff: Back-off pulling image "x"' in pending(run)
    assert engines.alive(run)
    count = len(run.events())
    engines.refresh(run)
    assert len(run.events()) == count, "the same is not said twice"


def test_an_image_that_cannot_be_had_is_one_line_however_often_it_is_tried(play: Play) -> None:
    run = play.start()
    play.pod(run, phase="Pending")
    for keyword, words in (
        ("ErrImagePull", "lookup registry: read udp 10.90.0.2:58671: i/o timeout"),
        ("ImagePullBackOff", 'Back-off pulling image "x"'),
        ("ErrImagePull", "lookup registry: read udp 10.90.0.2:41003: i/o timeout"),
        ("ImagePullBackOff", 'Back-off pulling image "x"'),
    ):
        play.pod(run, containerStatuses=[{"state": {"waiting": {"reason": keyword, "message": words}}}])
        engines.refresh(run)
    told = [event.message for event in run.events() if isinstance(event, StatusChanged)]
    assert len([each for each in told if "algo-1: ErrImagePull: lookup registry" in each]) == 1
    assert not any("BackOff" in each for each in told)
    play.pod(run, containerStatuses=[{"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "never"}}}])
    engines.refresh(run)
    assert "ErrImageNeverPull: never" in pending(run), "another cause is another line"


def test_a_pod_that_runs_and_in_which_nothing_can_be_run_is_told(play: Play) -> None:
    run = play.start()
    play.running(run)
    play.server.faults.append(Fault(500, resource="pods/exec", times=1))
    with pytest.raises(ExecFailed, match="cannot run a command in the pod"):
        engines.refresh(run)
    assert engines.alive(run)
    engines.refresh(run)
    assert [line.text for line in run.logs()] == ["hello"]


def test_a_host_without_a_pod_says_what_the_events_of_its_job_say(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_run, "EXPLAIN_SECONDS", -1.0)
    run = play.start()
    job = next(each for each in play.server.of("jobs") if each["metadata"]["name"].endswith("algo-2"))
    words = "pods is forbidden: exceeded quota: small"
    play.server.put("events", {"metadata": {"name": "e1"}, "involvedObject": {"uid": job["metadata"]["uid"]},
                               "type": "Warning", "reason": "FailedCreate", "message": words})  # fmt: skip
    engines.refresh(run)
    assert pending(run) == f"algo-1: its pod is starting; algo-2: FailedCreate: {words}"


def test_a_host_that_has_come_is_not_waited_for_though_the_cluster_still_says_that_its_pod_starts(play: Play) -> None:
    run = play.start()
    play.running(run)
    play.pod(run, "algo-2", phase="Pending")
    with EventWriter(play.there.events("engine")) as events:
        for host in ("algo-1", "algo-2"):
            events.write(HostRegistered(t=time.time(), group="dnn", host=host))
    engines.refresh(run)
    assert not [event for event in run.events() if isinstance(event, StatusChanged) and "starting" in event.message]
    with EventWriter(play.there.events("engine")) as events:
        events.write(AttemptStarted(t=time.time(), number=2))
    engines.refresh(run)
    assert pending(run) == "algo-2: its pod is starting on n1"


def test_a_run_that_waits_for_too_long_has_failed_and_leaves_nothing(play: Play) -> None:
    run = play.start(options={"max_pending": 0.001})
    time.sleep(0.01)
    engines.refresh(run)
    assert run.status is Status.FAILED
    assert (run.cause.kind, run.cause.infrastructure) == (CauseKind.INSTANCE_NOT_STARTED, True)
    assert "its pod" in str(run.cause)
    assert play.left() == []


def test_a_leader_whose_other_pods_do_not_come_is_told_to_end_the_run(play: Play) -> None:
    run = play.start(options={"max_pending": 0.001})
    play.running(run)
    play.pod(run, "algo-2", phase="Pending")
    time.sleep(0.01)
    engines.refresh(run)
    (command,) = play.asked
    assert command[:4] == ["stop", "--failed", "--kind", "instance_not_started"]
    assert "algo-2" in command[-1]
    assert not Run(run.paths).finished, "its record says how it ended"


# --- the end ------------------------------------------------------------------------------------------------------


def test_the_record_comes_home_and_nothing_is_left(play: Play) -> None:
    run = play.start()
    play.running(run)
    engines.refresh(run)
    assert [line.text for line in run.logs()] == ["hello"]
    assert engines.alive(run)
    play.end()
    (play.there.root / "output").mkdir()
    (play.there.root / "output" / "model.tar.gz").write_bytes(b"model")
    engines.refresh(run)
    assert run.status is Status.COMPLETED
    assert (run.paths.root / "output" / "model.tar.gz").read_bytes() == b"model"
    assert (play.there.engine / FETCHED).exists()
    assert play.left() == []
    assert not engines.alive(run)
    assert not engines.stop(run)


def test_the_end_waits_until_the_objects_are_deleted(play: Play) -> None:
    run = play.start()
    play.running(run)
    play.end()
    play.server.faults.append(Fault(500, verb="delete", times=3))
    with pytest.raises(KubernetesUnreachable):
        engines.refresh(run)
    assert not Run(run.paths).finished
    assert engines.alive(run)
    play.server.objects.pop(
        ("pods", "train", f"{read_ticket(run.paths, KubeTicket).name}-algo-1-abc")
    )  # it was told to go
    engines.refresh(run)
    assert run.status is Status.COMPLETED
    assert play.left() == []


ENDS: dict[str, tuple[CauseKind, Status, str]] = {
    "oom_main": (CauseKind.OUT_OF_MEMORY, Status.FAILED, "OOMKilled"),
    "evicted_for_memory": (CauseKind.HOST_LOST, Status.FAILED, "MemoryPressure"),
    "deadline": (CauseKind.MAX_RUN, Status.STOPPED, "reached its deadline"),
    "program_missing": (CauseKind.INSTANCE_NOT_STARTED, Status.FAILED, "OCI runtime create failed"),
    "preempted": (CauseKind.HOST_LOST, Status.FAILED, "was deleted"),
    "node_killed": (CauseKind.HOST_LOST, Status.FAILED, "its node node2 failed"),
}


@pytest.mark.parametrize("name", sorted(ENDS) if SOAK else ["oom_main", "preempted"])
def test_a_leader_that_kubernetes_has_ended_is_named_with_the_cause(play: Play, name: str) -> None:
    kind, status, words = ENDS[name]
    run = play.start()
    play.running(run)
    engines.refresh(run)
    assert read_leader(run.paths)
    pods = (each for seen in replay(name) for each in seen.pods.values())
    ended = next(each for each in pods if each["status"].get("phase") == "Failed")
    pod = play.pod(run)
    play.server.change("pods", pod, spec={"nodeName": "node2"}, status=ended["status"])
    if "deletionTimestamp" in ended["metadata"]:
        play.server.objects["pods", "train", pod]["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"
        play.pod(run, name="another", phase="Running")  # its Job makes one at once
    engines.refresh(run)
    assert (run.status, run.cause.kind) == (status, kind)
    assert words in str(run.cause)
    assert [line.text for line in run.logs()] == ["hello"], "what was fetched stays"
    assert play.left() == []


@pytest.mark.promise("engines", "who answers for a run, on kubernetes")
def test_a_leader_that_is_gone_has_lost_the_run_also_when_its_job_has_made_another(play: Play) -> None:
    run = play.start()
    pod = play.running(run)
    engines.refresh(run)
    play.server.remove("pods", pod)
    play.pod(run, name="another", phase="Running")
    engines.refresh(run)
    assert (run.status, run.cause.kind, run.cause.infrastructure) == (Status.FAILED, CauseKind.HOST_LOST, True)
    assert "its pod is gone" in str(run.cause)
    assert play.left() == []


def test_a_run_whose_objects_somebody_has_deleted_has_failed(play: Play) -> None:
    run = play.start()
    play.server.remove("jobs", f"{read_ticket(run.paths, KubeTicket).name}-algo-1")
    assert play.left() == [], "as when its time to live is over"
    engines.refresh(run)
    assert run.status is Status.FAILED
    assert "its pod is gone" in str(run.cause)


@pytest.mark.parametrize("stored", [True, False])
def test_a_last_word_is_the_end_when_nobody_fetched_the_record(play: Play, stored: bool) -> None:
    run = play.start(**({"output_path": "s3://bucket/out"} if stored else {}), options={"check_storage": False})
    play.running(run)
    play.ended(run, LastWord(Status.COMPLETED))
    engines.refresh(run)
    assert run.status is (Status.COMPLETED if stored else Status.FAILED), "an output that is lost is no success"
    assert stored or "before its output was fetched" in str(run.cause)
    assert play.left() == []


def test_a_failure_in_the_last_word_keeps_its_cause(play: Play) -> None:
    run = play.start()
    play.running(run)
    cause = Cause(CauseKind.PROGRAM_EXITED, "", "dnn", "algo-1", "0", 3)
    play.ended(run, LastWord(Status.FAILED, cause), "Failed")
    engines.refresh(run)
    assert (run.status, run.cause) == (Status.FAILED, cause)


@pytest.mark.promise("engines", "who answers for a run, on kubernetes")
@pytest.mark.parametrize("fault", ["slow", 503, *([500, "half", 429] if SOAK else [])])
def test_a_cluster_that_does_not_answer_says_nothing_about_a_run(
    play: Play, fault: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play.start()
    play.running(run)
    if fault == "slow":
        monkeypatch.setattr("headrace.engines.kubernetes.cluster.ANSWER_SECONDS", 0.1)
        disconnect()
    play.server.faults.append(Fault(fault, verb="list", times=3))
    with pytest.raises(KubernetesUnreachable):
        engines.refresh(run)
    assert engines.alive(run)
    assert not Run(run.paths).finished
    engines.refresh(run)
    assert [line.text for line in run.logs()] == ["hello"]


@pytest.mark.parametrize("right", [("get", "pods/exec"), *([("list", "pods"), ("delete", "jobs")] if SOAK else [])])
def test_a_right_that_is_lost_in_mid_run_is_told_and_when_it_is_given_back_the_run_comes_to_its_end(
    play: Play, right: tuple[str, str]
) -> None:
    run = play.start()
    play.running(run)
    engines.refresh(run)
    play.end()
    play.server.denied.add(right)
    told: list[str] = []
    ask = AskEngine(told.append, seconds=0.0)
    assert [ask(run), ask(run)] == [True, True], "the run goes on"
    (sentence,) = told
    assert f"{right[1]}" in sentence
    assert "forbidden" in sentence
    assert "the page kubernetes of the docs has the role" in sentence
    play.server.denied.remove(right)
    engines.refresh(run)
    assert run.status is Status.COMPLETED
    assert play.left() == []


def test_another_cluster_says_nothing_about_a_run(play: Play) -> None:
    run = play.start()
    write_ticket(run.paths, msgspec.structs.replace(read_ticket(run.paths, KubeTicket), server="https://other"))
    for ask in (engines.refresh, engines.alive, engines.stop):
        with pytest.raises(KubernetesUnreachable, match="is on the cluster at https://other"):
            ask(run)


# --- a record that is stored too ----------------------------------------------------------------------------------


def store_part(play: Play, run: Run, s3: ObjectStore, last: bool = False) -> None:
    """What the leader's pod does while it runs."""
    pod = RunPaths(play.folder / "pods" / run.id)
    with Store() as store:
        SegmentWriter(pod, store, s3.uri("records"), "engine", play.folder / "stored.json").store(last)


def log(play: Play, text: str) -> None:
    with (play.there.root / "logs/dnn/algo-1/0.log").open("a") as file:
        file.write(f"2026-11-22T10:00:01.000000Z o {text}\n")


@pytest.fixture
def kept(play: Play, s3: ObjectStore) -> Run:
    """A run whose record is stored in S3, and of which a part is stored, and more is fetched."""
    run = play.start(record={"uri": s3.uri("records")}, output_path=s3.uri("out"))
    play.running(run)
    shutil.copy(run.paths.header, play.there.header)
    engines.refresh(run)
    store_part(play, run, s3)
    log(play, "fetched, but not stored")
    engines.refresh(run)
    assert [line.text for line in run.logs()] == ["hello", "fetched, but not stored"]
    return run


@pytest.mark.promise("engines", "another attempt, on kubernetes")
@pytest.mark.s3
def test_another_pod_of_the_leader_goes_on_and_its_record_is_the_one_here(play: Play, kept: Run) -> None:
    play.server.remove("pods", play.pod(kept, phase="Running"))
    engines.refresh(kept)
    assert pending(kept) == "algo-1: its pod is starting"
    (play.there.root / "logs/dnn/algo-1/0.log").write_text("2026-11-22T10:00:00.000000Z o hello\n")  # what was stored
    log(play, "of the next attempt, which has more to say than the one before it")
    play.pod(kept, name="another", phase="Running")
    engines.refresh(kept)
    lines = [line.text for line in kept.logs()]
    assert lines == ["hello", "of the next attempt, which has more to say than the one before it"]
    play.end()
    engines.refresh(kept)
    assert kept.status is Status.COMPLETED
    assert play.left() == []


@pytest.mark.promise("engines", "the record in a bucket, on kubernetes")
@pytest.mark.s3
def test_the_end_of_a_record_comes_from_where_it_is_stored_when_the_pod_is_gone(
    play: Play, kept: Run, s3: ObjectStore
) -> None:
    log(play, "stored, and never fetched")
    play.end()
    store_part(play, kept, s3, last=True)
    play.pod(kept, phase="Succeeded")
    play.job_complete(kept)
    engines.refresh(kept)
    assert [line.text for line in kept.logs()] == ["hello", "fetched, but not stored", "stored, and never fetched"]
    assert kept.status is Status.COMPLETED
    assert play.left() == []
    assert not (kept.paths.engine / refresh_run.FROM_STORE).exists()


@pytest.mark.s3
@pytest.mark.parametrize("again", [*([False] if SOAK else []), True])
def test_an_output_that_was_lost_with_its_pod_is_told_when_the_stored_record_says_completed(
    play: Play, s3: ObjectStore, again: bool
) -> None:
    run = play.start(record={"uri": s3.uri("records")}, options={"check_storage": False})
    pod = play.running(run)
    shutil.copy(run.paths.header, play.there.header)
    engines.refresh(run)
    with EventWriter(play.there.events("engine")) as events:
        events.write(
            ArtefactsStored(t=1.0, name="model", uri=str(play.there.output / "model.tar.gz"), files=1, bytes=5)
        )
    play.end()
    store_part(play, run, s3, last=True)
    if again:  # another pod has brought the record back, and has nothing else
        play.server.remove("pods", pod)
        play.pod(run, name="another", phase="Running")
    else:
        play.pod(run, phase="Succeeded")
        play.job_complete(run)
    engines.refresh(run)
    assert run.status is Status.COMPLETED
    (lost,) = (event for event in run.events() if isinstance(event, HostNotCollected))
    assert "before its output was fetched" in lost.reason
    assert play.left() == []


@pytest.mark.parametrize("check", [False, True])
def test_a_store_that_only_pods_reach_does_not_keep_a_run_from_its_end(
    play: Play, check: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ENDPOINT_URL", "http://127.0.0.1:9"), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(f"AWS_{name}", value)
    places = {"record": {"uri": "s3://bucket/records"}, "output_path": "s3://bucket/out"}
    run = play.start(**places, options={"check_storage": False})
    write_ticket(run.paths, msgspec.structs.replace(read_ticket(run.paths, KubeTicket), reads_store=check))
    play.running(run)
    play.ended(run, LastWord(Status.COMPLETED))
    if check:
        with pytest.raises(StorageError):
            engines.refresh(run)
        assert engines.alive(run), "it is asked again"
        return
    engines.refresh(run)
    assert run.status is Status.COMPLETED
    assert play.left() == []


@pytest.mark.s3
def test_a_record_that_was_stored_in_part_ends_with_what_kubernetes_says(play: Play, kept: Run) -> None:
    play.server.remove("jobs", f"{read_ticket(kept.paths, KubeTicket).name}-algo-1")
    engines.refresh(kept)
    assert (kept.status, kept.cause.kind) == (Status.FAILED, CauseKind.HOST_LOST)
    assert [line.text for line in kept.logs()] == ["hello", "fetched, but not stored"]


# --- stop ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("engines", "the programs save on a stop, on kubernetes")
@pytest.mark.parametrize("now", [False, True])
def test_a_stop_is_asked_of_the_leader(play: Play, now: bool) -> None:
    run = play.start()
    play.running(run)
    assert engines.stop(run, now)
    assert play.asked == [["stop", *(["--now"] if now else [])]]
    assert not Run(run.paths).finished, "the run says itself how it ended"


def test_a_run_that_waits_is_stopped_by_deleting_it(play: Play) -> None:
    run = play.start()
    play.pod(run)
    assert engines.stop(run)
    assert run.status is Status.STOPPED
    assert "while its pods waited" in str(run.cause)
    assert play.left() == []


def test_a_stop_does_not_end_a_run_that_has_ended_meanwhile(play: Play) -> None:
    run = play.start()
    play.pod(run)
    stopped: list[bool] = []
    with alone(run.paths) as mine:
        assert mine
        stopping = threading.Thread(target=lambda: stopped.append(engines.stop(run)))
        asked = play.server.asked["list", "pods"]
        stopping.start()
        until(lambda: play.server.asked["list", "pods"] > asked, 30)
        with platform_news(run.paths) as news:
            news.end(Status.FAILED, Cause(CauseKind.INSTANCE_NOT_STARTED, "it waited for too long"))
        time.sleep(0.5)  # long enough for a stop that would not wait
    stopping.join(30)
    assert stopped == [False]
    assert run.status is Status.FAILED


def test_a_leader_that_cannot_be_asked_is_an_error_and_with_now_the_end(play: Play) -> None:
    run = play.start()
    play.running(run)
    play.stop_code = 1
    with pytest.raises(EngineRefused, match="the coordinator has not taken the command") as caught:
        engines.stop(run)
    assert "--now" in caught.value.hint
    play.server.faults.append(Fault(500, resource="pods/exec"))
    with pytest.raises(EngineRefused, match="no route to host"):
        engines.stop(run)
    assert not Run(run.paths).finished
    assert engines.stop(run, True)
    assert run.status is Status.STOPPED
    assert play.left() == []


# --- what else is shown -------------------------------------------------------------------------------------------


@pytest.mark.promise("engines", "what the platform has of a run, on kubernetes")
def test_logs_of_the_platform_are_the_logs_of_pods_their_states_and_events(play: Play) -> None:
    run = play.start()
    pod = play.running(run)
    play.server.logs[pod] = "what the node has kept\n"
    uid = play.server.objects["pods", "train", pod]["metadata"]["uid"]
    about = {"uid": uid, "name": pod}
    event = {"involvedObject": about, "type": "Normal", "reason": "Started", "message": "container"}
    play.server.put("events", {"metadata": {"name": "e1"}, **event, "lastTimestamp": "2026-11-22T10:00:00Z"})
    documents = {each.name: each.text for each in kubernetes_engine.ENGINE.logs(run)}
    assert documents[f"{pod}.log"] == "what the node has kept\n"
    assert '"phase": "Running"' in documents[f"{pod}.json"]
    assert documents["events.txt"] == f"2026-11-22T10:00:00Z Normal {pod} Started: container\n"
    play.server.objects.clear()
    (run.paths.engine / "agent.log").write_text("of an agent\n")
    assert [tuple(each) for each in engines.logs(run)] == [
        ("engine/agent.log", "of an agent\n"),
        ("events.txt", f"the cluster has no events of {run.id}\n"),
    ]


def test_doctor_says_what_works_and_what_is_missing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {each.name: each for each in engines.capabilities("kubernetes")}
    assert found["kubernetes"].works
    assert "v1.20.2 answers" in found["kubernetes"].detail
    assert found["permissions"].works
    play.server.denied.add(("create", "pods/exec"))
    denied = {each.name: each for each in engines.capabilities("kubernetes")}["permissions"]
    assert not denied.works
    assert "create pods/exec" in denied.detail
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    (none,) = engines.capabilities("kubernetes")
    assert not none.works
    assert none.hint


# --- who watches --------------------------------------------------------------------------------------------------


def watcher_of(paths: RunPaths) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"watch_run {paths.root}"], capture_output=True, text=True, check=False)
    return [int(each) for each in found.stdout.split()]


@pytest.mark.promise("engines", "the submitting process is killed, on kubernetes")
def test_a_detached_run_is_watched_to_its_end_and_the_watcher_is_started_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play.start(detach=True)
    until(lambda: watcher_of(run.paths), 30)
    play.running(run)
    until(lambda: [line.text for line in run.logs()] == ["hello"], 30)
    for pid in watcher_of(run.paths):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not watcher_of(run.paths), 30)
    killed_submitter(run)
    engines.refresh(run)
    engines.refresh(run)
    until(lambda: len(watcher_of(run.paths)) == 1, 30)
    play.end()
    until(lambda: Run(run.paths).finished, 30)
    until(lambda: not watcher_of(run.paths), 30)
    assert run.status is Status.COMPLETED
    assert play.left() == []
    with alone(run.paths, lock_file=watch_run.LOCK) as mine:
        assert mine


def test_a_run_has_one_watcher(play: Play) -> None:
    run = play.start()
    with alone(run.paths, lock_file=watch_run.LOCK) as mine:
        assert mine
        assert watch_run.main([str(run.paths.root)]) == 0, "another one watches it"
        watch_run.ensure_watched(run.paths)
        assert not (run.paths.engine / watch_run.TOLD).exists(), "nothing was started"

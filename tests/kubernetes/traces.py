"""Records what the API server of a real cluster says while a host's Job goes right or wrong.

    scripts/kubernetes/cluster.py run .venv/bin/python tests/kubernetes/traces.py OUT [SCENARIO ...]

One JSON file a scenario:

    scenario, about, server, date
    steps    [{at, kind, type, object}]: what watches of pods, Jobs and events of the namespace were sent; `at`: seconds
    deeds    [{at, deed}]: what was done to the cluster meanwhile

An object is kept with what is of use to a client (`recording.trimmed`). What `kubectl get` shows at the end is the last
object of each uid that was not DELETED; the recorder has compared. tests/engines plays these files to the engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recording import Api, Object, Recording, recording

CLUSTER = Path(__file__).parents[2] / "scripts" / "kubernetes" / "cluster.py"
IMAGE = "docker.io/local/host:1"
MOUNTED = ("/usr", "/bin", "/lib", "/lib64")


def job(
    namespace: str,
    script: str,
    *,
    host: str = "algo-1",
    image: str = IMAGE,
    policy: str = "IfNotPresent",
    retries: int = 0,
    container: Object | None = None,
    volumes: tuple[Object, ...] = (),
    mounts: tuple[Object, ...] = (),
    **pod: object,
) -> Object:
    """Returns the Job of a host, of the form that headrace makes."""
    labels = {"headrace/run": namespace, "headrace/host": host, "headrace/group": "all"}
    nodes = [{"name": path.strip("/"), "hostPath": {"path": path}} for path in MOUNTED]
    host_mounts = [{"name": path.strip("/"), "mountPath": path, "readOnly": True} for path in MOUNTED]
    one = {
        "name": "host", "image": image, "imagePullPolicy": policy, "command": ["bash", "-c", script],
        "volumeMounts": [*host_mounts, *mounts], **(container or {}),
    }  # fmt: skip
    spec = {
        "restartPolicy": "Never", "hostname": host, "subdomain": namespace, "enableServiceLinks": False,
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 10,
        "volumes": [*nodes, *volumes], "containers": [one], **pod,
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"{namespace}-{host}", "labels": labels},
        "spec": {"completions": 1, "backoffLimit": retries, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }  # fmt: skip


def start(record: Recording, *jobs: Object) -> None:
    for each in jobs:
        record.api.ask("POST", f"/apis/batch/v1/namespaces/{record.namespace}/jobs", each)


def phase(name: str) -> Callable[[Object], object]:
    return lambda pod: pod["status"].get("phase") == name


def waiting(reason: str) -> Callable[[Object], object]:
    return lambda pod: any(
        each["state"].get("waiting", {}).get("reason") == reason for each in pod["status"].get("containerStatuses", [])
    )


def finished(one: Object) -> object:
    return any(
        each["status"] == "True" and each["type"] in ("Complete", "Failed")
        for each in one["status"].get("conditions", [])
    )


def pod_of(record: Recording) -> str:
    return str(next(step["object"]["metadata"]["name"] for step in record.steps if step["kind"] == "pods"))


def at_cluster(verb: str, *words: str) -> None:
    command = [sys.executable, str(CLUSTER), verb, os.environ["KUBERNETES_CLUSTER"], *words]
    subprocess.run(command, check=True, capture_output=True)


HOG = "exec python3.11 -c 'held = [bytearray(16 << 20) for _ in range(64)]'"
SLOW_TO_END = "trap 'sleep 2; exit 143' TERM; echo works; for i in $(seq 1200); do sleep 0.1; done"
SMALL = {"resources": {"limits": {"memory": "64Mi", "cpu": "500m"}}}


def normal(record: Recording) -> None:
    """Two hosts, Completed, each with a termination message."""
    script = 'sleep 2; printf \'{"status": "Completed"}\' > /dev/termination-log'
    start(
        record,
        job(record.namespace, script),
        job(record.namespace, script, host="algo-2", nodeSelector={"group": "data"}),
    )
    for host in ("algo-1", "algo-2"):
        record.wait(lambda one, host=host: one["metadata"]["name"].endswith(host) and finished(one), kind="jobs")  # type: ignore[misc]


def unschedulable_selector(record: Recording) -> None:
    """No node has the labels that are asked for."""
    start(record, job(record.namespace, "true", nodeSelector={"node.kubernetes.io/instance-type": "p4d.24xlarge"}))
    record.wait(lambda pod: any(each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions", [])))
    record.stay(5)


def unschedulable_resources(record: Recording) -> None:
    """No node is large enough, and none has such devices."""
    asked = {"resources": {"requests": {"cpu": "64", "memory": "4Ti"}, "limits": {"nvidia.com/gpu": "8"}}}
    start(record, job(record.namespace, "true", container=asked))
    record.wait(lambda pod: any(each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions", [])))
    record.stay(5)


def quota_exceeded(record: Recording) -> None:
    """The namespace's quota refuses the pod: there is none, and only an event of the Job says why."""
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"requests.cpu": "1", "pods": "0"}}}
    record.api.ask("POST", f"/api/v1/namespaces/{record.namespace}/resourcequotas", quota)
    record.stay(1)  # the quota holds as soon as its status is counted
    start(record, job(record.namespace, "true", container={"resources": {"requests": {"cpu": "500m"}}}))
    record.wait(lambda event: event["reason"] == "FailedCreate", kind="events")
    record.stay(3)


def refused_image(record: Recording, image: str, reason: str, seconds: float, policy: str = "IfNotPresent") -> None:
    """A pod waits for this reason; what is seen for some seconds more is recorded, too."""
    start(record, job(record.namespace, "true", image=image, policy=policy))
    record.wait(waiting(reason))
    record.stay(seconds)


def image_missing(record: Recording) -> None:
    """The image cannot be pulled."""
    refused_image(record, "registry.example.com/team/missing:1", "ImagePullBackOff", 15)


def image_never(record: Recording) -> None:
    """The image is not on the node, and must not be pulled."""
    refused_image(record, "registry.example.com/team/missing:1", "ErrImageNeverPull", 2, policy="Never")


def image_invalid(record: Recording) -> None:
    """The image's name is none."""
    refused_image(record, "Team/Image:first one", "InvalidImageName", 2)


def secret_missing(record: Recording) -> None:
    """A variable comes from a Secret that is not there."""
    source = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}}
    start(record, job(record.namespace, "true", container={"env": [source]}))
    record.wait(waiting("CreateContainerConfigError"))
    record.stay(2)


def configmap_missing(record: Recording) -> None:
    """A variable comes from a ConfigMap that is not there."""
    source = {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "key"}}}
    start(record, job(record.namespace, "true", container={"env": [source]}))
    record.wait(waiting("CreateContainerConfigError"))
    record.stay(2)


def volume_missing(record: Recording) -> None:
    """A volume is of a Secret that is not there: the pod waits in ContainerCreating, and only events say why."""
    volume = {"name": "keys", "secret": {"secretName": "keys"}}
    start(record, job(record.namespace, "true", volumes=(volume,), mounts=({"name": "keys", "mountPath": "/keys"},)))
    record.wait(lambda event: event["reason"] == "FailedMount", kind="events")
    record.stay(3)


def program_missing(record: Recording) -> None:
    """The image has no such program."""
    start(record, job(record.namespace, "", container={"command": ["/opt/python/bin/python"]}))
    record.wait(phase("Failed"))
    record.wait(finished, kind="jobs")


def exit_3(record: Recording) -> None:
    """Exit code 3 with a termination message."""
    start(record, job(record.namespace, 'sleep 1; printf \'{"status": "Failed"}\' > /dev/termination-log; exit 3'))
    record.wait(finished, kind="jobs")


def retried(record: Recording) -> None:
    """A Job with two retries, whose pods fail."""
    start(record, job(record.namespace, "exit 3", retries=2))
    record.wait(finished, kind="jobs")


def oom_main(record: Recording) -> None:
    """The container's memory is used up by its main process."""
    start(record, job(record.namespace, HOG, container=SMALL))
    record.wait(finished, kind="jobs")


def oom_child(record: Recording) -> None:
    """A child is ended for memory; the main process goes on and exits 0."""
    start(record, job(record.namespace, f"({HOG}); echo child $?; sleep 2; exit 0", container=SMALL))
    record.wait(finished, kind="jobs")


def deadline(record: Recording) -> None:
    """The pod's activeDeadlineSeconds are over."""
    start(record, job(record.namespace, SLOW_TO_END, activeDeadlineSeconds=4))
    record.wait(finished, kind="jobs")
    record.stay(4)


def deleted(record: Recording) -> None:
    """Someone deletes the running pod: SIGTERM, then its Job makes another."""
    start(record, job(record.namespace, SLOW_TO_END))
    record.wait(phase("Running"))
    record.stay(1)
    record.did("DELETE pod")
    record.api.ask("DELETE", f"/api/v1/namespaces/{record.namespace}/pods/{pod_of(record)}")
    record.stay(12)


def evicted_by_drain(record: Recording) -> None:
    """The eviction API, as `kubectl drain` and autoscalers use it."""
    start(record, job(record.namespace, SLOW_TO_END))
    record.wait(phase("Running"))
    record.stay(1)
    name = pod_of(record)
    record.did("POST eviction")
    eviction = {
        "apiVersion": "policy/v1beta1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": record.namespace},
    }
    record.api.ask("POST", f"/api/v1/namespaces/{record.namespace}/pods/{name}/eviction", eviction)
    record.stay(12)


def evicted_for_disk(record: Recording) -> None:
    """More than the limit is written to an emptyDir: the kubelet evicts the pod."""
    volume = {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}
    script = f"head -c 8M /dev/zero > /scratch/big; {SLOW_TO_END}"
    start(
        record, job(record.namespace, script, volumes=(volume,), mounts=({"name": "scratch", "mountPath": "/scratch"},))
    )
    record.wait(lambda pod: pod["status"].get("reason") == "Evicted", 180)
    record.stay(12)


def _kubelet(node: int, old: str, new: str) -> None:
    config = Path(os.environ["KUBERNETES_CLUSTER"]) / f"node{node}" / "kubelet.yaml"
    config.write_text(config.read_text().replace(old, new))
    at_cluster("on-node", str(node), "pkill", "-TERM", "-x", "kubelet")


def evicted_for_memory(record: Recording) -> None:
    """The node is short of memory (its kubelet is told to keep more free than the machine has): it evicts the pod."""
    start(record, job(record.namespace, SLOW_TO_END, nodeSelector={"group": "data"}))
    record.wait(phase("Running"))
    record.stay(1)
    less, more = "evictionHard: {memory.available: 100Mi}", "evictionHard: {memory.available: 99%}"
    record.did("node2: memory pressure")
    _kubelet(2, less, more)
    try:
        record.wait(lambda pod: pod["status"].get("reason") == "Evicted", 120)
        record.stay(5)
    finally:
        _kubelet(2, more, less)
        record.did("node2: no memory pressure")
    record.stay(5)


def preempted(record: Recording) -> None:
    """A pod of a higher priority takes the place of the running one."""
    for name, value in (("trace-low", 10), ("trace-high", 1000)):
        made = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        record.api.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", made)
    large = {"resources": {"requests": {"cpu": "1500m"}}}
    data = {"group": "data"}
    start(record, job(record.namespace, SLOW_TO_END, container=large, priorityClassName="trace-low", nodeSelector=data))
    record.wait(phase("Running"))
    record.stay(1)
    record.did("a pod of a higher priority")
    other = job(
        record.namespace, "sleep 3", host="other", container=large, priorityClassName="trace-high", nodeSelector=data
    )
    start(record, other)
    record.wait(lambda one: one["metadata"]["name"].endswith("other") and finished(one), kind="jobs")
    record.stay(3)
    for name in ("trace-low", "trace-high"):
        record.api.ask("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


def node_cut_and_healed(record: Recording) -> None:
    """The node's cable is taken out for a minute; its pod works on meanwhile."""
    start(record, job(record.namespace, SLOW_TO_END, nodeSelector={"group": "data"}))
    record.wait(phase("Running"))
    record.stay(1)
    record.did("node2: cut")
    at_cluster("cut", "2")
    record.stay(60)
    record.did("node2: healed")
    at_cluster("heal", "2")
    record.stay(25)


def node_killed(record: Recording) -> None:
    """The node loses its power; nobody starts it again for a minute."""
    start(record, job(record.namespace, SLOW_TO_END, nodeSelector={"group": "data"}))
    record.wait(phase("Running"))
    record.stay(1)
    record.did("node2: killed")
    at_cluster("kill", "2")
    record.stay(60)
    record.did("node2: started again")
    at_cluster("revive", "2")
    record.stay(30)


# Those of the second row change nodes, and are recorded one after the other.
TOGETHER = (
    normal, unschedulable_selector, unschedulable_resources, quota_exceeded, image_missing, image_never, image_invalid,
    secret_missing, configmap_missing, volume_missing, program_missing, exit_3, retried, oom_main, oom_child, deadline,
    deleted, evicted_by_drain, evicted_for_disk,
)  # fmt: skip
ALONE = (preempted, evicted_for_memory, node_cut_and_healed, node_killed)


def keep(api: Api, out: Path, play: Callable[[Recording], None]) -> None:
    """Records a scenario."""
    name = play.__name__
    with recording(api, name.replace("_", "-")) as record:
        play(record)
        record.catch_up()
        server = api.ask("GET", "/version")["gitVersion"]
    about = {
        "scenario": name,
        "about": (play.__doc__ or "").strip(),
        "server": server,
        "date": time.strftime("%Y-%m-%d"),
    }
    text = json.dumps({**about, "steps": record.steps, "deeds": record.deeds}, indent=None, separators=(",", ":"))
    (out / f"{name}.json").write_text(text + "\n")
    print(f"{name}: {len(record.steps)} steps, {record.now():.0f} s, {len(text)} bytes", flush=True)


def main(out: str, *names: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    api = Api()
    chosen = {play.__name__: play for play in (*TOGETHER, *ALONE) if not names or play.__name__ in names}
    with ThreadPoolExecutor(6) as pool:
        waited = [pool.submit(keep, api, folder, play) for play in TOGETHER if play.__name__ in chosen]
        failed = [each.exception() for each in waited]
    for play in (play for play in ALONE if play.__name__ in chosen):
        try:
            keep(api, folder, play)
        except RuntimeError as error:
            failed.append(error)
    if problems := [error for error in failed if error]:
        sys.exit("\n".join(map(str, problems)))


if __name__ == "__main__":
    main(*sys.argv[1:])

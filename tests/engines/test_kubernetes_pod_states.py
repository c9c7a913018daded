"""What is made of Kubernetes' words: every trace of a real cluster, and what newer servers say besides."""

from __future__ import annotations

from typing import Any

import pytest
from kube_jobs import DATA, DNN, planned
from kube_traces import NAMES, Seen, replay

from headrace.engines.kubernetes.objects import objects
from headrace.engines.kubernetes.pod_states import (
    PodPhase,
    PodState,
    end_of_pod,
    job_states,
    last_event,
    pod_states,
    waited_too_long,
    why_waiting,
)
from headrace.engines.kubernetes.send_record import MOST_BYTES, LastWord, decode_last_word, encode_last_word
from headrace.runs import Cause, CauseKind, Status

A, W, R, L, E = PodPhase.ABSENT, PodPhase.WAITING, PodPhase.RUNNING, PodPhase.LEAVING, PodPhase.ENDED
HOSTS = {"algo-1": "dnn"}


def states_of(seen: Seen) -> list[PodState]:
    return pod_states(seen.pods.values(), HOSTS, seen.now)["algo-1"]


def life(name: str) -> list[PodState]:
    """The states of the first pod of a trace, each once."""
    found: list[PodState] = []
    for seen in replay(name):
        state = states_of(seen)[0]
        if found and found[-1].uid and state.uid != found[-1].uid:
            break  # it is gone
        if not found or (state.phase, state.keyword) != (found[-1].phase, found[-1].keyword):
            found.append(state)
    return found


WAITING = {
    "configmap_missing": ("CreateContainerConfigError", 'configmap "settings" not found'),
    "image_invalid": ("InvalidImageName", "couldn't parse image reference"),
    "image_missing": ("ImagePullBackOff", "registry.example.com/team/missing:1"),
    "image_never": ("ErrImageNeverPull", "pull policy of Never"),
    "secret_missing": ("CreateContainerConfigError", 'secret "keys" not found'),
    "unschedulable_resources": ("Unschedulable", "2 Insufficient nvidia.com/gpu"),
    "unschedulable_selector": ("Unschedulable", "node affinity"),
}
LIVES: dict[str, tuple[list[PodPhase], Status, CauseKind, bool, str]] = {
    "deadline": ([A, W, R, E], Status.STOPPED, CauseKind.MAX_RUN, False, "longer than the specified deadline"),
    "deleted": ([A, W, R, L, E], Status.FAILED, CauseKind.HOST_LOST, True, "was deleted"),
    "evicted_by_drain": ([A, W, R, L, E], Status.FAILED, CauseKind.HOST_LOST, True, "was deleted"),
    "preempted": ([A, W, R, L, E], Status.FAILED, CauseKind.HOST_LOST, True, "was deleted"),
    "evicted_for_disk": ([A, W, R, E], Status.FAILED, CauseKind.HOST_LOST, True, 'EmptyDir volume "scratch" exceeds'),
    "evicted_for_memory": ([A, W, R, E], Status.FAILED, CauseKind.HOST_LOST, True, "MemoryPressure"),
    "exit_3": ([A, W, R, E], Status.FAILED, CauseKind.UNKNOWN, False, "exited with code 3"),
    "normal": ([A, W, R, E], Status.COMPLETED, CauseKind.UNKNOWN, False, ""),
    "node_killed": ([A, W, R, R, L, E], Status.FAILED, CauseKind.HOST_LOST, True, "its node node2 failed"),
    "oom_child": ([A, W, R, E], Status.FAILED, CauseKind.OUT_OF_MEMORY, False, "OOMKilled"),
    "oom_main": ([A, W, E], Status.FAILED, CauseKind.OUT_OF_MEMORY, False, "OOMKilled"),
    "program_missing": ([A, W, E], Status.FAILED, CauseKind.INSTANCE_NOT_STARTED, False, "OCI runtime create failed"),
    "retried": ([A, W, E], Status.FAILED, CauseKind.ENGINE_FAILED, True, "ended without a word: exited with code 3"),
}
OTHERS = {"node_cut_and_healed", "quota_exceeded", "volume_missing"}


def test_every_trace_is_looked_at() -> None:
    assert {*WAITING, *LIVES, *OTHERS} == set(NAMES)


@pytest.mark.parametrize("name", sorted(LIVES))
def test_a_pod_ends_with_the_cause_that_a_real_cluster_gave_it(name: str) -> None:
    phases, status, kind, infrastructure, words = LIVES[name]
    states = life(name)
    assert [state.phase for state in states] == phases
    found, cause = end_of_pod(states[-1])
    assert (found, cause.kind, cause.infrastructure) == (status, kind, infrastructure)
    assert words in cause.detail
    assert kind is CauseKind.MAX_RUN or (cause.group, cause.host) == ("dnn", "algo-1")


@pytest.mark.parametrize("name", sorted(WAITING))
def test_a_pod_that_waits_says_why_and_waits_no_longer_than_it_may(name: str) -> None:
    keyword, words = WAITING[name]
    state = life(name)[-1]
    assert (state.phase, state.keyword) == (W, keyword)
    line = why_waiting([state])
    assert line.startswith(f"algo-1: {keyword}: ")
    assert words in line
    begun = state.since
    hopeless = keyword == "InvalidImageName"
    assert (waited_too_long([state], 100, begun + 50, begun) is not None) == hopeless
    cause = waited_too_long([state], 100, begun + 101, begun)
    assert cause is not None
    assert (cause.kind, cause.host) == (CauseKind.INSTANCE_NOT_STARTED, "algo-1")
    assert words in cause.detail
    assert cause.infrastructure


def test_a_node_that_does_not_answer_is_told_and_its_pod_is_lost_when_kubernetes_gives_it_up() -> None:
    states = life("node_cut_and_healed")
    assert [(state.phase, state.keyword) for state in states] == [
        (W, ""), (W, "Unschedulable"), (W, ""), (R, ""), (R, "NodeNotReady"), (L, ""),
    ]  # fmt: skip
    assert states[4].words == "its node node2 does not answer"
    seen = [*replay("node_cut_and_healed")][-1]
    seen.now += 600
    first, second = states_of(seen)
    assert (first.phase, second.phase) == (PodPhase.LOST, W)
    status, cause = end_of_pod(first)
    assert (status, cause.kind, cause.infrastructure) == (Status.FAILED, CauseKind.HOST_LOST, True)


def test_what_only_events_say_is_found_there() -> None:
    seen = [*replay("quota_exceeded")][-1]
    (state,) = states_of(seen)
    job = job_states(seen.jobs.values())["algo-1"]
    assert (state.phase, job.over) == (A, False)
    assert "exceeded quota: small" in last_event(seen.events_of(job.uid))
    assert waited_too_long([state], 100, 1101, 1000) is not None, "without a pod it counts from the submission"
    seen = [*replay("volume_missing")][-1]
    (state,) = states_of(seen)
    assert (state.phase, state.keyword) == (W, "")
    assert "FailedMount" in last_event(seen.events_of(state.uid))


def test_a_job_says_that_it_makes_no_further_pod() -> None:
    assert not job_states(next(replay("normal")).jobs.values())["algo-1"].over
    done = job_states([*replay("normal")][-1].jobs.values())["algo-1"]
    assert (done.over, done.words) == (True, "")
    failed = job_states([*replay("exit_3")][-1].jobs.values())["algo-1"]
    assert failed.over
    assert "BackoffLimitExceeded" in failed.words


def pod(
    phase: str = "Running", host: str = "algo-1", spec: dict[str, Any] | None = None, **status: Any
) -> dict[str, Any]:
    meta = {"name": f"demo-{host}", "uid": "u1", "labels": {"headrace/host": host}, "creationTimestamp": None}
    return {"metadata": meta, "spec": spec or {"nodeName": "n1"}, "status": {"phase": phase, **status}}


def state_of(made: dict[str, Any]) -> PodState:
    return pod_states([made], HOSTS, 0.0)["algo-1"][-1]


@pytest.mark.parametrize(
    ("keyword", "words"),
    [
        ("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
        ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
        ("EvictionByEvictionAPI", "Eviction API: evicting"),
        ("TerminationByKubelet", "The node was low on resource: memory."),
    ],
)
def test_a_newer_server_says_why_it_took_a_pod_away(keyword: str, words: str) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": keyword, "message": words}
    state = state_of(pod("Failed", conditions=[condition]))
    status, cause = end_of_pod(state)
    assert (status, cause.kind, cause.infrastructure) == (Status.FAILED, CauseKind.HOST_LOST, True)
    assert f"{keyword}: {words}" in cause.detail
    leaving = pod(conditions=[condition])
    leaving["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:10Z"
    assert (state_of(leaving).phase, state_of(leaving).keyword) == (L, keyword)


def test_a_step_before_the_container_that_fails_is_named() -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "pip: no matching distribution found"}
    state = state_of(pod("Failed", initContainerStatuses=[{"name": "pip", "state": {"terminated": ended}}]))
    status, cause = end_of_pod(state)
    assert (status, cause.kind) == (Status.FAILED, CauseKind.INSTANCE_NOT_STARTED)
    assert "its step pip exited with code 1: pip: no matching distribution found" in cause.detail
    waiting = {"name": "pip", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    assert state_of(pod("Pending", initContainerStatuses=[waiting])).words == "ErrImagePull: not found"


def test_our_own_last_word_stands_above_what_kubernetes_says() -> None:
    word = LastWord(Status.FAILED, Cause(CauseKind.STALLED, "nothing for 60 s", "data", "algo-2", "feed"))
    ended = {"exitCode": 0, "reason": "OOMKilled", "message": encode_last_word(word).decode()}
    state = state_of(pod("Failed", containerStatuses=[{"name": "host", "state": {"terminated": ended}}]))
    assert end_of_pod(state) == (Status.FAILED, word.cause)


def test_a_last_word_fits_into_a_termination_message_however_much_it_has_to_say() -> None:
    long = "ü" * 3000
    cause = Cause(
        CauseKind.PROGRAM_EXITED, long, "g", "h", "0", 3, last_lines=(long,) * 9, then=Cause(detail=long), note=long
    )
    data = encode_last_word(LastWord(Status.FAILED, cause, long))
    assert len(data) <= MOST_BYTES
    word = decode_last_word(data)
    assert word is not None
    assert (word.status, word.cause.exit_code, word.cause.host) == (Status.FAILED, 3, "h")
    assert decode_last_word("panic: runtime error") is None


def test_hosts_that_wait_for_one_reason_stand_together() -> None:
    states = [PodState(f"algo-{number}", "data", W, words="no room") for number in (10, 9, 2, 3, 4)]
    states += [PodState("algo-1", "dnn", W), PodState("algo-5", "dnn", R, words="never shown")]
    assert why_waiting(states) == "algo-1: its pod is starting; algo-2, algo-3, algo-4 and 2 more: no room"


def test_the_job_of_a_group_in_a_jobset_is_that_of_all_its_hosts() -> None:
    job_set = objects(planned({"gang": True, "image": "x"}, {**DATA, "count": 2}, DNN))[0]
    jobs = []
    for part in job_set["spec"]["replicatedJobs"]:
        made = part["template"]
        status = {"conditions": [{"type": "Complete", "status": "True"}]} if part["name"] == "g2" else {}
        jobs.append({**made, "metadata": {**made["metadata"], "uid": part["name"]}, "status": status})
    found = job_states(jobs)
    assert {host: (state.uid, state.over) for host, state in found.items()} == {
        "algo-1": ("g1", False), "algo-2": ("g1", False), "algo-3": ("g2", True),
    }  # fmt: skip

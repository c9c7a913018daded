"""What Kubernetes says of the pods and Jobs of a run, read from its objects. Pure.

None of this is the verdict on a run: that comes from its record, or from the last word of the leader's pod. It says why
hosts wait, and what has become of a pod that can say it no more itself.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headrace.engines.kubernetes.objects import host_of_pod, hosts_of_job
from headrace.engines.kubernetes.send_record import LastWord, decode_last_word
from headrace.exit_status import exit_text
from headrace.name_order import by_number
from headrace.runs import Cause, CauseKind, Status

Object = Mapping[str, Any]

LOST_SECONDS = 60.0  # so long after its grace a pod that is being deleted still has no end: its node does not answer
_NEVER = re.compile(r'violates PodSecurity "|failed quota: ')
"""What the API server says of a pod that it will not take as it is, however long its Job tries."""
_POLICY = re.compile(r'(?:PodSecurity "\w+:[\w.]+"|failed quota: [^:]+): (.*)', re.DOTALL)
_OF_POLICY = {
    r"allowPrivilegeEscalation|unrestricted capabilities|runAsNonRoot|runAsUser|seccompProfile": "user: 1000",
    r"volume": "volumes (claim)",
    r"\bprivileged \(": "privileged: false",
    r"host namespaces|hostPort": "pod, container",
    r"must specify (?:requests|limits)\.": "resources",
}
"""Words of PodSecurity's standards and of quotas to the key of `engines.kubernetes` with which pods pass."""
REFUSED = "PodRefused"
"""Our keyword of hosts whose pod is never made."""
HOPELESS = frozenset({"InvalidImageName", REFUSED})
"""Keywords of pods that wait for what no waiting changes."""
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Keywords of pods whose container could not begin."""
_UNKNOWN = frozenset({"Unknown", "ContainerStatusUnknown"})
"""Keywords of pods whose node does not know any more what has become of their container."""
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
_IMAGE_PULL, _NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff"}), "no image"
_SIGNAL, _SIGNALS = 128, 64


class PodPhase(enum.Enum):
    """Where the pod of a host is."""

    ABSENT = "absent"
    WAITING = "waiting"
    """It has no node, or its container has not begun."""
    RUNNING = "running"
    LEAVING = "leaving"
    """It is being deleted."""
    LOST = "lost"
    """Its node does not answer, and Kubernetes has given it up."""
    ENDED = "ended"


@dataclass(frozen=True)
class PodState:
    """What Kubernetes says of the pod of a host.

    Attributes:
        host, group: of the host.
        phase: where it is.
        pod: its name; empty without one.
        uid: its uid, which no other pod has.
        words: why it waits, or what is wrong, in Kubernetes' words; empty when there is nothing to say.
        keyword: the same as Kubernetes' own keyword, e.g. ``Unschedulable``.
        init: a step before the container failed, and not the container.
        taken: somebody has deleted it, before or after it ended.
        since: when the pod was made, seconds since the epoch; 0 without one.
        word: the last word of headrace in it; None when it could not say it.
        node: where it is or was; empty before.
    """

    host: str
    group: str
    phase: PodPhase
    pod: str = ""
    uid: str = ""
    words: str = ""
    keyword: str = ""
    init: bool = False
    taken: bool = False
    since: float = 0.0
    word: LastWord | None = None
    node: str = ""


@dataclass(frozen=True)
class JobState:
    """What Kubernetes says of the Job of a host.

    Attributes:
        host: the host.
        uid: of the Job.
        over: it makes no further pod.
        words: why it failed, in Kubernetes' words; empty if it did not.
    """

    host: str
    uid: str
    over: bool
    words: str


def pod_states(pods: Iterable[Object], hosts: Mapping[str, str], now: float) -> dict[str, list[PodState]]:
    """Returns the states of the pods of each host, the newest last; a host without one has a state that says so.

    A Job makes another pod as soon as one of its pods is taken away, before that has ended.

    Args:
        pods: the pods of a run.
        hosts: name of each host to its group.
        now: seconds since the epoch.
    """
    found: dict[str, list[PodState]] = {host: [] for host in hosts}
    for pod in sorted(pods, key=lambda each: seconds_of(each["metadata"].get("creationTimestamp"))):
        host = host_of_pod(pod)
        if host in found:
            found[host].append(_state(pod, host, hosts[host], now))
    return {host: states or [PodState(host, hosts[host], PodPhase.ABSENT)] for host, states in found.items()}


def job_states(jobs: Iterable[Object]) -> dict[str, JobState]:
    """Returns the state of the Job of each host that has one."""
    found = {}
    for job in jobs:
        conditions = _conditions(job)
        failed = conditions.get("Failed") or conditions.get("FailureTarget")
        over = failed is not None or "Complete" in conditions
        for host in hosts_of_job(job):
            found[host] = JobState(host, job["metadata"].get("uid", ""), over, said(failed) if failed else "")
    return found


def why_waiting(states: Iterable[PodState]) -> str:
    """Returns why the pods of a run wait, in one line: hosts of one reason together.

    >>> why_waiting([PodState("algo-2", "data", PodPhase.WAITING, words="Unschedulable: 0/3 nodes are available")])
    'algo-2: Unschedulable: 0/3 nodes are available'
    """
    found: dict[str, list[str]] = {}
    for state in sorted(states, key=lambda each: by_number(each.host)):
        if state.phase in (PodPhase.WAITING, PodPhase.ABSENT):
            found.setdefault(state.words or "its pod is starting", []).append(state.host)
    return "; ".join(f"{_names(hosts)}: {words}" for words, hosts in found.items())


def with_one_cause(state: PodState) -> PodState:
    """Returns a state whose words are the same as long as the pod waits for the same thing.

    While an image cannot be had, Kubernetes says by turns that it could not get it and that it waits.
    """
    return replace(state, words=_NO_IMAGE) if state.keyword in _IMAGE_PULL else state


def end_of_pod(state: PodState) -> tuple[Status, Cause]:
    """Returns how a run ended whose leader's pod has no more to say than Kubernetes does.

    Args:
        state: of the leader's pod; absent, lost, leaving or ended.
    """
    if state.word is not None and state.word.status in (Status.COMPLETED, Status.FAILED, Status.STOPPED):
        detail = state.word.reason or f"the pod {state.pod} {state.words}"
        return state.word.status, state.word.cause or Cause(CauseKind.UNKNOWN, detail, state.group, state.host)
    keyword = state.keyword

    def lost(detail: str, kind: CauseKind = CauseKind.HOST_LOST) -> Cause:
        return Cause(kind, detail, state.group, state.host, infrastructure=True)

    if state.phase is PodPhase.ABSENT:
        return Status.FAILED, lost(f"its pod is gone{_because(state)}")
    if keyword in _UNKNOWN:
        return Status.FAILED, lost(f"its node {state.node} failed under the pod {state.pod}")
    if state.taken:
        return Status.FAILED, lost(f"the pod {state.pod} was deleted{_because(state)}")
    if keyword == "OOMKilled":
        detail = f"the pod {state.pod} used more memory than its limit (OOMKilled)"
        return Status.FAILED, Cause(CauseKind.OUT_OF_MEMORY, detail, state.group, state.host)
    if keyword == "DeadlineExceeded":
        return Status.STOPPED, Cause(CauseKind.MAX_RUN, f"the pod {state.pod} reached its deadline{_because(state)}")
    if state.init or keyword in NOT_STARTED:
        detail = f"the pod {state.pod} could not begin: {state.words}"
        return Status.FAILED, Cause(CauseKind.INSTANCE_NOT_STARTED, detail, state.group, state.host)
    if keyword not in ("", "Error", "Completed"):
        return Status.FAILED, lost(f"the pod {state.pod} was ended by Kubernetes{_because(state)}")
    return Status.FAILED, lost(f"the pod {state.pod} ended without a word{_because(state)}", CauseKind.ENGINE_FAILED)


def waited_too_long(states: Sequence[PodState], seconds: float, now: float, job: float) -> Cause | None:
    """Returns why a run does not wait any longer for its pods; None while it does.

    Args:
        states: of the pods of its hosts.
        seconds: how long a pod may wait.
        now: seconds since the epoch.
        job: when the run was submitted, for hosts that have no pod yet.
    """
    for state in sorted(states, key=lambda each: by_number(each.host)):
        if state.phase not in (PodPhase.WAITING, PodPhase.ABSENT):
            continue
        waited = now - (state.since or job)
        if waited > seconds or state.keyword in HOPELESS:
            words = state.words or "its pod does not start"
            detail = "; ".join(filter(None, (f"it waited {waited:.0f} s for its pod: {words}", keys_of_policy(words))))
            return Cause(CauseKind.INSTANCE_NOT_STARTED, detail, state.group, state.host, infrastructure=True)
    return None


def never_made(words: str) -> bool:
    """Returns whether the words with which the API server refuses a pod mean that it will never take it as it is.

    >>> never_made('violates PodSecurity "restricted:latest": seccompProfile'), never_made("exceeded quota: small")
    (True, False)
    """
    return _NEVER.search(words) is not None


def keys_of_policy(words: str) -> str:
    """Returns with which keys of the job file pods pass what PodSecurity or a quota says of them, or nothing.

    >>> keys_of_policy('would violate PodSecurity "restricted:v1.30": runAsNonRoot != true (pod or container ...)')
    'pods pass with engines.kubernetes.user: 1000 (or the same of a group)'
    >>> keys_of_policy('pods "x" is forbidden: failed quota: small: must specify limits.memory')
    'pods pass with engines.kubernetes.resources (or the same of a group)'
    """
    policy = _POLICY.search(words)
    keys = [f"engines.kubernetes.{key}" for word, key in _OF_POLICY.items() if policy and re.search(word, policy[1])]
    return f"pods pass with {' and '.join(keys)} (or the same of a group)" if keys else ""


def seconds_of(time: str | None) -> float:
    """Returns a time of Kubernetes in seconds since the epoch; 0 for none.

    >>> seconds_of("1970-01-01T00:01:00Z")
    60.0
    """
    if not time:
        return 0.0
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def last_event(events: Sequence[Object]) -> str:
    """Returns the newest event if it is a warning, e.g. why a Job cannot make its pod; else it goes on: empty."""
    return said(events[-1]) if events and events[-1].get("type") == "Warning" else ""


def said(by: Object) -> str:
    """Returns what an event, a condition or a state says: keyword and text."""
    keyword, text = by.get("reason", ""), str(by.get("message", "")).strip()
    return f"{keyword}: {text}" if keyword and text else keyword or text


def _state(pod: Object, host: str, group: str, now: float) -> PodState:
    """Returns the state of a pod: its phase, and why, as keyword and in words."""
    meta, status, conditions = pod["metadata"], pod.get("status", {}), _conditions(pod)
    state = PodState(
        host,
        group,
        PodPhase.RUNNING,
        meta["name"],
        meta.get("uid", ""),
        taken=bool(meta.get("deletionTimestamp")),
        since=seconds_of(meta.get("creationTimestamp")),
        word=_word(status),
        node=pod.get("spec", {}).get("nodeName", ""),
    )
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return _ended(state, status, conditions)
    if state.taken:
        target = conditions.get("DisruptionTarget") or {"reason": status.get("reason", "")}
        keyword = target.get("reason", "")
        if now > seconds_of(meta["deletionTimestamp"]) + LOST_SECONDS:
            return replace(state, phase=PodPhase.LOST, keyword=keyword, words="its node does not answer")
        return replace(state, phase=PodPhase.LEAVING, keyword=keyword, words=said(target))
    if phase == "Pending":
        return _waiting(state, pod, status)
    ready = _all_conditions(pod).get("Ready", {})
    # Kubernetes gives no keyword when it has not heard of the node, and one when a container is not ready.
    silent = ready.get("status") in ("False", "Unknown") and not ready.get("reason")
    if phase == "Unknown" or silent:
        return replace(state, keyword="NodeNotReady", words=f"its node {state.node} does not answer")
    return state


def _waiting(state: PodState, pod: Object, status: Object) -> PodState:
    """Returns why a pod waits."""
    state = replace(state, phase=PodPhase.WAITING)
    for part in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(part, ()):
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason", "") not in _STARTING:
                return replace(state, keyword=waiting["reason"], words=said(waiting))
    scheduled = _all_conditions(pod).get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return replace(state, keyword=scheduled.get("reason", ""), words=said(scheduled))
    return replace(state, words=f"its pod is starting on {state.node}" if state.node else "")


def _ended(state: PodState, status: Object, conditions: Mapping[str, Object]) -> PodState:
    """Returns why a pod ended."""
    state = replace(state, phase=PodPhase.ENDED)
    for init in status.get("initContainerStatuses", ()):
        ended = init.get("state", {}).get("terminated", {})
        if ended.get("exitCode"):
            text = ended.get("message", "").strip() or ended.get("reason", "")
            words = f"its step {init.get('name', '')} {_how(ended)}: {text}"
            return replace(state, keyword=ended.get("reason", ""), words=words, init=True)
    for by in (conditions.get("DisruptionTarget"), status):
        if by and by.get("reason"):
            return replace(state, keyword=by["reason"], words=said(by))
    ended = _container(status).get("terminated", {})
    text = ended.get("message", "").strip()
    words = _how(ended) if ended else ""
    if text and state.word is None:
        words = f"{words}: {text}"
    return replace(state, keyword=ended.get("reason", ""), words=words)


def _how(ended: Object) -> str:
    code = int(ended.get("exitCode", 0))
    killed = _SIGNAL < code <= _SIGNAL + _SIGNALS
    return exit_text(None, code - _SIGNAL) if killed else exit_text(code, None)


def _word(status: Object) -> LastWord | None:
    message = _container(status).get("terminated", {}).get("message", "")
    return decode_last_word(message) if message else None


def _container(status: Object) -> Object:
    """Returns the state of a pod's one container."""
    state: Object = next((each.get("state", {}) for each in status.get("containerStatuses", ())), {})
    return state


def _all_conditions(made: Object) -> dict[str, Object]:
    return {each["type"]: each for each in made.get("status", {}).get("conditions", ())}


def _conditions(made: Object) -> dict[str, Object]:
    return {name: each for name, each in _all_conditions(made).items() if each.get("status") == "True"}


def _because(state: PodState) -> str:
    return f": {state.words}" if state.words else ""


def _names(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{', '.join(hosts[:3])} and {len(hosts) - 3} more"

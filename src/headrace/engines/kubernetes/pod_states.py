"""What Kubernetes says of the pods and Jobs of a run, read from its objects. Pure.

None of this is the verdict on a run: that comes from its record, or from the last word of the leader's pod. It says why
hosts wait, and what has become of a pod that can say it no more itself.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.engines.kubernetes.pod_words import LastWord, decode_last_word
from headrace.exit_status import exit_text
from headrace.runs import Cause, CauseKind, Status
from headrace.runs.run_paths import by_number

Object = Mapping[str, Any]

HOST, GROUP = "headrace/host", "headrace/group"  # labels
LOST_SECONDS = 60.0  # so long after its grace a pod that is being deleted still has no end: its node does not answer
HOPELESS = frozenset({"InvalidImageName"})
"""Reasons to wait that no waiting changes."""
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
_SIGNAL = 128


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
        reason: the same as Kubernetes' own keyword, e.g. ``Unschedulable``.
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
    reason: str = ""
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


def pod_states(pods: Iterable[Object], hosts: Mapping[str, str], now: float) -> dict[str, PodState]:
    """Returns the state of the newest pod of each host.

    Args:
        pods: the pods of a run.
        hosts: name of each host to its group.
        now: seconds since the epoch.
    """
    newest: dict[str, Object] = {}
    for pod in sorted(pods, key=lambda each: seconds_of(each["metadata"].get("creationTimestamp"))):
        newest[pod["metadata"].get("labels", {}).get(HOST, "")] = pod
    return {
        host: _state(newest[host], host, group, now) if host in newest else PodState(host, group, PodPhase.ABSENT)
        for host, group in hosts.items()
    }


def job_states(jobs: Iterable[Object]) -> dict[str, JobState]:
    """Returns the state of the Job of each host that has one."""
    found = {}
    for job in jobs:
        host = job["metadata"].get("labels", {}).get(HOST, "")
        conditions = _conditions(job)
        failed = conditions.get("Failed") or conditions.get("FailureTarget")
        over = failed is not None or "Complete" in conditions
        found[host] = JobState(host, job["metadata"].get("uid", ""), over, _said(failed) if failed else "")
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


def end_of_pod(state: PodState) -> tuple[Status, Cause]:
    """Returns how a run ended whose leader's pod has no more to say than Kubernetes does.

    Args:
        state: of the leader's pod; absent, lost, leaving or ended.
    """
    if state.word is not None and state.word.status in (Status.COMPLETED, Status.FAILED, Status.STOPPED):
        cause = state.word.cause or Cause(detail=state.word.reason)
        return state.word.status, cause
    reason = state.reason

    def lost(detail: str, kind: CauseKind = CauseKind.HOST_LOST) -> Cause:
        return Cause(kind, detail, state.group, state.host, infrastructure=True)

    if state.phase is PodPhase.ABSENT:
        return Status.FAILED, lost(f"its pod is gone{_because(state)}")
    if state.phase in (PodPhase.LEAVING, PodPhase.LOST):
        return Status.FAILED, lost(f"the pod {state.pod} was deleted{_because(state)}")
    if reason == "OOMKilled":
        detail = f"the pod {state.pod} used more memory than its limit (OOMKilled)"
        return Status.FAILED, Cause(CauseKind.OUT_OF_MEMORY, detail, state.group, state.host)
    if reason == "DeadlineExceeded":
        return Status.STOPPED, Cause(CauseKind.MAX_RUN, f"the pod {state.pod} reached its deadline{_because(state)}")
    if reason.startswith("Init:"):
        detail = f"the pod {state.pod} could not begin: {state.words}"
        return Status.FAILED, Cause(CauseKind.INSTANCE_NOT_STARTED, detail, state.group, state.host)
    if reason and reason not in ("Error", "Completed"):
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
        if waited > seconds or state.reason in HOPELESS:
            words = state.words or "its pod does not start"
            detail = f"it waited {waited:.0f} s for its pod: {words}"
            return Cause(CauseKind.INSTANCE_NOT_STARTED, detail, state.group, state.host, infrastructure=True)
    return None


def seconds_of(time: str | None) -> float:
    """Returns a time of Kubernetes in seconds since the epoch; 0 for none.

    >>> seconds_of("1970-01-01T00:01:00Z")
    60.0
    """
    if not time:
        return 0.0
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def last_event(events: Sequence[Object]) -> str:
    """Returns the newest warning among events, e.g. why a Job cannot make its pod; empty without one."""
    warnings = [each for each in events if each.get("type") == "Warning"]
    return _said(warnings[-1]) if warnings else ""


def _state(pod: Object, host: str, group: str, now: float) -> PodState:
    meta, status = pod["metadata"], pod.get("status", {})
    phase, reason, words = _phase(pod, now)
    return PodState(
        host,
        group,
        phase,
        meta["name"],
        meta.get("uid", ""),
        words,
        reason,
        seconds_of(meta.get("creationTimestamp")),
        _word(status),
        pod.get("spec", {}).get("nodeName", ""),
    )


def _phase(pod: Object, now: float) -> tuple[PodPhase, str, str]:
    """Returns the phase of a pod, and why, as keyword and in words."""
    status, conditions = pod.get("status", {}), _conditions(pod)
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return PodPhase.ENDED, *_end(status, conditions)
    deleted = seconds_of(pod["metadata"].get("deletionTimestamp"))
    if deleted:
        target = conditions.get("DisruptionTarget")
        why = target.get("reason", "") if target else status.get("reason", "")
        words = _said(target) if target else status.get("message", "") or why
        return (PodPhase.LOST if now > deleted + LOST_SECONDS else PodPhase.LEAVING), why, words
    if phase == "Pending":
        return PodPhase.WAITING, *_waiting(pod, status)
    ready = _all_conditions(pod).get("Ready", {})
    if phase == "Unknown" or status.get("reason") == "NodeLost":
        return PodPhase.RUNNING, "NodeLost", "its node does not answer"
    if ready.get("status") == "False" and not _container(status).get("terminated") and not ready.get("reason"):
        return PodPhase.RUNNING, "NodeNotReady", "its node does not answer"
    return PodPhase.RUNNING, "", ""


def _waiting(pod: Object, status: Object) -> tuple[str, str]:
    """Returns why a pod waits: keyword and words."""
    for part in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(part, ()):
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason", "") not in _STARTING:
                return waiting["reason"], _said(waiting)
    scheduled = _all_conditions(pod).get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return scheduled.get("reason", ""), _said(scheduled)
    node = pod.get("spec", {}).get("nodeName", "")
    return "", f"starting on {node}: its image is being pulled, or its volumes are being made" if node else ""


def _end(status: Object, conditions: Mapping[str, Object]) -> tuple[str, str]:
    """Returns why a pod ended: keyword and words."""
    for init in status.get("initContainerStatuses", ()):
        ended = init.get("state", {}).get("terminated", {})
        if ended.get("exitCode"):
            text = ended.get("message", "").strip() or ended.get("reason", "")
            return f"Init:{ended.get('reason', '')}", f"its step {init.get('name', '')} {_how(ended)}: {text}"
    if target := conditions.get("DisruptionTarget"):
        return target.get("reason", ""), _said(target)
    if status.get("reason"):
        return status["reason"], _said(status)
    ended = _container(status).get("terminated", {})
    text = ended.get("message", "").strip()
    how = _how(ended) if ended else ""
    return ended.get("reason", ""), f"{how}: {text}" if text and decode_last_word(text) is None else how


def _how(ended: Object) -> str:
    code = int(ended.get("exitCode", 0))
    return exit_text(None, code - _SIGNAL) if code > _SIGNAL else exit_text(code, None)


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


def _said(by: Object) -> str:
    reason, message = by.get("reason", ""), str(by.get("message", "")).strip()
    return f"{reason}: {message}" if reason and message else reason or message


def _because(state: PodState) -> str:
    return f": {state.words}" if state.words else ""


def _names(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{', '.join(hosts[:3])} and {len(hosts) - 3} more"

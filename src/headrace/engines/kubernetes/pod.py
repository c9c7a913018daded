"""The main process of a pod: makes its host ready, then is the host's supervisor, and has the last word.

    python -m headrace.engines.kubernetes.pod RUN_DIR HOST WORD

`host_start` starts it when the run's directory and /opt/ml are in place. It fills in what only the host knows:
channels that are folders of a volume, code in S3, how many data workers fill its CPUs, its memory, its network
interface, the environments of its requirements. Whatever then happens, its last word comes to lie in the file WORD,
which is the container's termination message, and the leader's pod waits until the record of the run has been fetched
from it.

A pod that the platform ends, and that another one may replace, says no last word: the run goes on.

Exit code: that of `supervise_host`; `REPLACED` of a pod that is to be replaced. Libraries of the instance side only.
"""

from __future__ import annotations

import functools
import http.client
import json
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.engines.host_order import HostOrder, make_host_ready, read_host_order
from headrace.engines.kubernetes.send_record import ASKED, FETCHED, LastWord, write_last_word
from headrace.errors import HeadraceError
from headrace.hosting.helpers.store_record import NAME as STORE_RECORD
from headrace.hosting.inputs.host_facts import name_own_interface
from headrace.hosting.supervision.helper_processes import is_wanted
from headrace.hosting.supervision.one_host import supervise_host
from headrace.instance.launch_plan import SECRET_NAME, HostPlan, LaunchPlan, channel_dir
from headrace.instance.paths import TreePaths
from headrace.log_setup import VARIABLE, log_to_stderr
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, read_plan
from headrace.runs.events import RunFinished
from headrace.runs.run_paths import ENGINE

TOKEN, AUTHORITY, NAMESPACE = "token", "ca.crt", "namespace"
"""Keys of the Secret that the cluster fills for a service account."""
ANSWER_SECONDS = 3.0
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"  # every pod has them


def keep_pod(jobs: Mapping[str, str], folder: Path, host: str, kept: bool) -> None:
    """Has the cluster keep a pod of a data host that comes and goes, or none: one that runs is ended.

    The leader's pod may change the Jobs of these hosts and nothing else (see `objects`), with a token that travels like
    the other inputs.

    Args:
        jobs: the Jobs, by host.
        folder: where the Secret with the token is mounted.
        host: the host.
        kept: whether it has a pod.

    Raises:
        OSError: the cluster does not do it.
    """
    tls = ssl.create_default_context(cafile=str(folder / AUTHORITY))
    token, namespace = ((folder / name).read_text().strip() for name in (TOKEN, NAMESPACE))
    port = int(os.environ.get(PORT) or 443)
    server = http.client.HTTPSConnection(os.environ.get(HOST, ""), port, timeout=ANSWER_SECONDS, context=tls)
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{jobs[host]}"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    try:
        server.request("PATCH", path, json.dumps({"spec": {"parallelism": int(kept)}}), headers)
        answer = server.getresponse()
        text = answer.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"the API server answered with something else: {error!r}") from error
    finally:
        server.close()
    if answer.status != http.client.OK:
        raise OSError(f"the API server refused to change the Job {jobs[host]}: {answer.status} {text[:300]}")


_log = logging.getLogger("headrace.engines.kubernetes.pod")  # this module runs as __main__

INPUT = "/headrace/in"  # see `pod_spec`
POLL = 0.2
HOSTS = Path("/etc/hosts")
NAMES_POLL = 0.5
REPLACED = 75  # EX_TEMPFAIL: the Job makes another pod after it (see `objects.FAILED`)


class PodEnded(HeadraceError):
    """The platform ends the pod before its host has begun."""


def main() -> int:
    """Entry point. Returns the exit code."""
    root, name, word_file = sys.argv[1:]
    paths = RunPaths(Path(root))
    log_to_stderr(os.environ.get(VARIABLE, ""))  # the pod's log
    signal.signal(signal.SIGTERM, _ended)  # process 1 would ignore it
    order = HostOrder()
    replaced = False
    try:
        order = read_host_order(paths)
        plan = read_plan(paths, LaunchPlan)
        replaced = _may_be_replaced(paths, plan, name)
        make_ready(paths, plan, plan.host(name), order)
        keep = functools.partial(keep_pod, order.jobs, Path(INPUT)) if order.jobs else None
        status = supervise_host(paths, name, keep=keep)
        if status is Status.IN_PROGRESS:
            return REPLACED
        word = LastWord(status)
        if name == plan.leader:
            state = Run(paths).state()
            word = LastWord(status, state.cause, state.failure_reason)
    except (HeadraceError, OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        if isinstance(error, PodEnded) and replaced:
            return REPLACED
        kind = CauseKind.HOST_LOST if isinstance(error, PodEnded) else CauseKind.INSTANCE_NOT_STARTED
        cause = Cause(kind, str(error), host=name, infrastructure=True)
        _log.error("%s", error)
        word = LastWord(Status.FAILED, cause, str(cause))
        if order.linger:  # the leader: its record is that of the run
            with EventWriter(paths.events(ENGINE)) as events:
                events.write(RunFinished(t=time.time(), status=word.status, cause=cause, failure_reason=word.reason))
    write_last_word(paths, word, Path(word_file))
    if order.linger and not (order.kept and not Run(paths).state().record_not_stored):
        await_fetched(paths, order.linger)
    return 0 if word.status is Status.COMPLETED or order.quiet else 1


def _may_be_replaced(paths: RunPaths, plan: LaunchPlan, host: str) -> bool:
    """Returns whether the run may go on with another pod of a host: the leader's needs the record that is stored."""
    if host == plan.leader:
        return plan.retry.attempts > 0 and is_wanted(paths, STORE_RECORD)
    return plan.retry.attempts > 0 or plan.comes_and_goes(host)


def _ended(*_: object) -> None:
    raise PodEnded("Kubernetes ended the pod before its host had begun")


def make_ready(paths: RunPaths, plan: LaunchPlan, host: HostPlan, order: HostOrder) -> None:
    """Makes the host ready. See `make_host_ready`."""
    secret = (channel_dir(host.base_dir) / SECRET_NAME).read_text()
    plan = make_host_ready(paths, plan, host.name, order, TreePaths(host.base_dir), secret)
    name_own_interface(host.base_dir, host)
    if order.named:
        name_hosts(plan)


def name_hosts(plan: LaunchPlan, file: Path = HOSTS) -> None:
    """Waits until all hosts have addresses, and writes their names down. Where the file may not be written: nothing.

    A host that has no address within `start_timeout` is left out: that it does not come is told elsewhere.

    Raises:
        OSError: the file cannot be written all the same.
    """
    if not os.access(file, os.W_OK):
        _log.warning("%s may not be written: the names algo-N do not resolve in this pod", file)
        return
    deadline = time.monotonic() + plan.start_timeout
    missing = {host.name: host.address for host in plan.hosts}
    while missing and time.monotonic() < deadline:
        for name, address in list(missing.items()):
            found = _resolved(address)
            if found:
                with file.open("a", encoding="utf-8") as out:
                    out.write(f"{found}\t{name}\n")
                del missing[name]
        if missing:
            time.sleep(NAMES_POLL)
    if missing:
        _log.warning("no address yet: %s", ", ".join(missing))


def _resolved(address: str) -> str:
    try:
        return socket.gethostbyname(address)
    except OSError:
        return ""


def await_fetched(paths: RunPaths, seconds: float) -> None:
    """Waits until the record has been fetched, or nobody has fetched any of it for a time, or the pod is ended."""
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))
    asked, deadline = _asked(paths), time.monotonic() + seconds
    while not over and time.monotonic() < deadline and not (paths.engine / FETCHED).exists():
        time.sleep(POLL)
        if asked != (asked := _asked(paths)):  # somebody fetches, however slowly
            deadline = time.monotonic() + seconds


def _asked(paths: RunPaths) -> int:
    """Returns when somebody has fetched something, in nanoseconds since the epoch; 0 if nobody has."""
    try:
        return (paths.engine / ASKED).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed; taking the interpreter apart takes long

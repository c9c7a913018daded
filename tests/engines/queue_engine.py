"""An engine of somebody else, small but real: a queue on this machine, whose runs live without whoever submitted them.

Submitting starts the job's own process, which waits for a slot (the file `open` in $QUEUE), then runs one agent a host,
with the coordinator in that process and no supervisor, and writes the last word. It plays a platform: batch script,
scheduler and nodes. SIGUSR1 and SIGUSR2 are its user's stop, SIGTERM is its own, which it passes on to the agents.

    queue_engine.py RUN_DIR
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.agent.coordinator.authority import Authority
from headrace.engines import Document
from headrace.engines.documents import log_documents
from headrace.engines.handle import RemoteHandle
from headrace.engines.local import engine as local
from headrace.engines.new_run import new_run
from headrace.engines.platform_news import platform_news
from headrace.engines.remote_job import plan_document, prepare_remote_run
from headrace.errors import HeadraceError
from headrace.instance.launch_plan import LaunchPlan, read_certificates
from headrace.instance.paths import BASE_VARIABLE
from headrace.runs import (
    Cause,
    CauseKind,
    EventWriter,
    RunPaths,
    Status,
    give_to_engine,
    process_start_time,
    read_plan,
)
from headrace.runs.events import RunFinished, SecondaryStatus, StatusChanged

QUEUE = "QUEUE"  # variable: folder of the queue
OPEN = "open"  # a file there: jobs may run
DOWN = "down"  # a file there: the platform does not answer

plan, check = local.plan, local.check  # its hosts are on this machine


def render(job):
    return (Document("job.txt", plan_document(plan(job)).text),)


def start(job, detach):
    checked = check(job)
    with new_run(job, "queue") as paths:
        prepare_remote_run(checked, paths)
    give_to_engine(paths)
    with (paths.engine / "queue.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(paths.root)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    ticket = {"pid": process.pid, "start": process_start_time(process.pid)}
    (paths.engine / "ticket.json").write_text(json.dumps(ticket))
    while not (paths.engine / "queued").exists():  # from here on it can be stopped
        assert process.poll() is None, (paths.engine / "queue.log").read_text()
        time.sleep(0.02)
    return RemoteHandle(paths)


def ticket_of(run) -> dict[str, float]:
    return json.loads((run.paths.engine / "ticket.json").read_text())


def alive(run):
    return process_start_time(ticket_of(run)["pid"]) == ticket_of(run)["start"]


def refresh(run):
    asked = time.time()
    if (Path(os.environ[QUEUE]) / DOWN).exists():
        raise HeadraceError("the queue does not answer")
    here = alive(run)
    with platform_news(run.paths) as news:
        if not here:
            cause = Cause(CauseKind.INSTANCE_NOT_STARTED, "the queue has no such job any more", infrastructure=True)
            news.end(Status.FAILED, cause)
        elif not (run.paths.engine / "slot").exists():
            news.status(SecondaryStatus.PENDING, "no slot is free", asked)


def stop(run, now):
    if not alive(run):
        return False
    os.kill(int(ticket_of(run)["pid"]), signal.SIGUSR2 if now else signal.SIGUSR1)
    return True


def logs(run):
    return log_documents(run.paths)


def main(root: str) -> int:
    paths = RunPaths(Path(root))
    launch = read_plan(paths, LaunchPlan)
    agents: list[subprocess.Popen[bytes]] = []
    stops: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: stops.append(number))
    signal.signal(signal.SIGTERM, lambda *_: [agent.terminate() for agent in agents])
    (paths.engine / "queued").touch()
    with EventWriter(paths.events("engine")) as events:
        while not (Path(os.environ[QUEUE]) / OPEN).exists():
            if stops:
                stopped = Cause(CauseKind.STOPPED, "stopped by the user")
                events.write(RunFinished(t=time.time(), status=Status.STOPPED, cause=stopped))
                return 0
            time.sleep(0.05)
        (paths.engine / "slot").touch()
        events.write(StatusChanged(t=time.time(), status=SecondaryStatus.TRAINING, message="Training in progress"))
        authority = Authority(launch, events, read_certificates(launch.host(launch.leader).base_dir))
        authority.start()
        for host in launch.hosts:
            env = {**os.environ, BASE_VARIABLE: host.base_dir, "HEADRACE_RUN_ID": launch.run_id}
            agents.append(subprocess.Popen([sys.executable, "-m", "headrace.agent"], env=env, stdin=subprocess.DEVNULL))
        leader = {**os.environ, BASE_VARIABLE: launch.host(launch.leader).base_dir}
        while any(agent.poll() is None for agent in agents) or authority.verdict is None:
            while stops:
                now = ["--now"] if stops.pop() == signal.SIGUSR2 else []
                subprocess.run([sys.executable, "-m", "headrace.agent.ask", "stop", *now], env=leader, check=True)
            time.sleep(0.05)
        authority.close()
        verdict = authority.verdict
        assert verdict is not None
        events.write(RunFinished(t=time.time(), status=verdict.status, cause=verdict.cause))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

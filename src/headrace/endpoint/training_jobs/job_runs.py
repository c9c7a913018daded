"""The runs of jobs: started by the engine, followed to their end, described and logged while they go on and later.

A run belongs to a job by the `base_path` in its header, which holds the job's uid: so a run that was started just
before the endpoint was killed is found again, and is not started twice.

One queue starts them: the oldest job first, so many at once. Its thread notices what has ended.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import cast

import msgspec

from headrace import engines
from headrace.endpoint.auth.gatekeeper import AccessKeys
from headrace.endpoint.services.cloudwatch_logs import LogStream, MergedLog
from headrace.endpoint.training_jobs import description
from headrace.endpoint.training_jobs.job_of_request import JobMaker
from headrace.endpoint.training_jobs.job_store import JobStore, Phase, StoredJob
from headrace.engines.asking import AskEngine
from headrace.engines.handle import Handle
from headrace.errors import EngineRefused, HeadraceError
from headrace.own_runs import started_here
from headrace.runs import EndOfRun, Run, RunPaths, runs_dir
from headrace.runs.describe import planned_groups
from headrace.runs.store import list_paths, read_header

LOGS = "logs"
OWN_PORTS = {"control": 27071, "feed": 27070, "tf_data": 27072, "master": 27777}
"""Of the run of a job that starts what it likes, on hosts that have all ports for themselves."""
TREE = "/opt/ml"
NOT_ISOLATED = "none"
_UIDS = "jobs"
_ADOPT_SECONDS = 10.0
_REAP_SECONDS = 60.0
_log = logging.getLogger(__name__)
_GONE = "the record of its run is gone"


class JobRuns:
    """The runs of an endpoint's jobs. Safe for use by several threads.

    Args:
        folder: of the store.
        store: the jobs.
        maker: makes jobs of requests.
        region: of the endpoint.
        address: of the endpoint, as programs with a network of their own call it.
        keys: of which programs get that of their job.
    """

    def __init__(
        self, folder: Path, store: JobStore, maker: JobMaker, region: str, address: str, keys: AccessKeys
    ) -> None:
        self._folder = folder
        self._store = store
        self._maker = maker
        self._region = region
        self._address = address
        self._keys = keys
        self._ask = AskEngine()
        self._lock = threading.Lock()
        self._locks: dict[str, threading.RLock] = {}
        self._ends: dict[str, EndOfRun] = {}
        self._logs: dict[tuple[str, str], MergedLog] = {}
        self._handles: list[tuple[Handle, float | None]] = []

    def begin(self, job: StoredJob) -> None:
        """Starts the run of a queued job; one that cannot be started has failed."""
        with self._of(job):
            if (current := self._store.find(job.name)) is None or current.phase is not Phase.QUEUED:
                return  # it was stopped
            self._store.change(job, phase=Phase.STARTING)
            try:
                handle = self._start(job)
            except HeadraceError as error:
                self.finish_without_run(job, ". ".join(filter(None, [error.message, error.hint])))
                return
            except Exception as error:  # noqa: BLE001  (the boundary to anybody's engine: other jobs are not its concern)
                _log.exception("%s could not be started", job.name)
                self.finish_without_run(job, f"{type(error).__name__}: {error}")
                return
            self._handles.append((handle, None))
            self._store.change(job, phase=Phase.RUNNING, run_id=handle.id)
        if (current := self._store.find(job.name)) is not None and current.stop_asked is not None:
            self.stop(current)

    def _start(self, job: StoredJob) -> Handle:
        base_path = self._folder / _UIDS / job.uid
        tags = [{"Key": key, "Value": value} for key, value in job.tags.items()]
        request = {**job.request, "TrainingJobName": job.name, **({"Tags": tags} if tags else {})}
        key = self._keys.of_job(job.uid)
        variables = {"AWS_ACCESS_KEY_ID": key.key_id, "AWS_SECRET_ACCESS_KEY": key.secret}
        if "AWS_ACCESS_KEY_ID" in cast("dict[str, str]", job.request.get("Environment", {})):
            variables = {}  # its programs call somebody else
        made = self._maker.make(request, base_path, variables)
        isolation = engines.plan(made, self._maker.engine).plan.isolation
        named = next((word for word in made.command or () if Path(word).is_relative_to(TREE)), None)
        if named is not None and isolation.level == NOT_ISOLATED:
            hint = "leave out --set engines.ENGINE.isolation=none; `headrace doctor` says what works on a machine"
            raise EngineRefused(f"{named}: hosts have no /opt/ml of their own ({isolation.why})", hint)
        if isolation.own_network and not isolation.outward:  # no program would reach this endpoint
            made = self._maker.make(request, base_path, variables, {"isolation": "shared_network"})
        elif isolation.own_network:
            # The helpers of a run have this process's variables; in a network of their own, programs need another name.
            # A job with an entrypoint of its own may bring agents of its own, whose ports are free on the service.
            ports = {"ports": OWN_PORTS} if made.command else None
            made = self._maker.make(request, base_path, {**variables, "AWS_ENDPOINT_URL": self._address}, ports)
        return engines.start(made, self._maker.engine, detach=True)

    def resume(self, job: StoredJob) -> None:
        """Takes up a job that was being started when the endpoint ended: its run goes on, or it is queued again."""
        base_path = str(self._folder / _UIDS / job.uid)
        deadline = time.monotonic() + _ADOPT_SECONDS
        found = [paths for paths in list_paths() if _base_path(paths) == base_path and started_here(paths.root)]
        run = Run(found[-1], self._ask) if found else None
        while run is not None and not run.supervised and not run.events() and time.monotonic() < deadline:
            time.sleep(0.1)  # a process that was started for it may still be on its way
        if run is None or not (run.supervised or run.events()):
            self._store.change(job, phase=Phase.QUEUED)
        else:
            self._store.change(job, phase=Phase.RUNNING, run_id=run.id)

    def run_of(self, job_name: str) -> Run | None:
        """Returns the run of a job, None when there is none (yet)."""
        job = self._store.find(job_name)
        return None if job is None else self._run(job)

    def _run(self, job: StoredJob) -> Run | None:
        paths = RunPaths(runs_dir() / job.run_id)
        if not job.run_id or not paths.header.is_file():
            return None
        end = self._ends.get(job.uid)  # of a running job: its run has read what was there already
        return Run(paths, self._ask) if end is None else end.run

    def settle(self, job: StoredJob) -> bool:
        """Notices the end of a running job: its logs are complete then, and its last description is kept.

        Returns:
            Whether it has ended.

        Raises:
            OSError, msgspec.DecodeError: its record cannot be read or kept now.
        """
        with self._of(job):
            current = self._store.find(job.name)
            if current is None or current.uid != job.uid or current.phase is not Phase.RUNNING:
                return True
            run = self._run(current)
            if run is None:
                self.finish_without_run(current, _GONE)
                return True
            end = self._ends.setdefault(job.uid, EndOfRun(run))
            if not end.reached():
                return False
            self._take_logs(current, run, final=True)
            final = description.of_run(current, run, self._region)
            self._store.change(current, phase=Phase.ENDED, final=final)
            self._ends.pop(job.uid, None)
            return True

    def describe(self, job: StoredJob) -> dict[str, object]:
        """Returns the description of a job as of now.

        Raises:
            OSError, msgspec.DecodeError: its record cannot be read.
        """
        if job.phase is Phase.RUNNING:
            self.settle(job)
            job = self._store.find(job.name) or job
        if job.final is not None:
            return job.final
        run = self._run(job)
        if run is None:
            return description.without_run(job, self._region, "Waiting for other jobs to end")
        found = description.of_run(job, run, self._region)
        while found["TrainingJobStatus"] in description.ENDED and not self.settle(job):
            time.sleep(0.05)  # what was killed may write for a moment; all lines are there before the job has ended
        ended = self._store.find(job.name)
        return ended.final if ended is not None and ended.final is not None else found

    def finish_without_run(self, job: StoredJob, failure: str) -> None:
        """Ends a job that has no run: `failure` says why, and is empty for one that was stopped."""
        final = description.ended_without_run(job, self._region, time.time(), failure)
        self._store.change(job, phase=Phase.ENDED, final=final)

    def stop(self, job: StoredJob, now: bool = False) -> None:
        """Stops a job, wherever it is. Raises HeadraceError, OSError."""
        with self._of(job):
            current = self._store.find(job.name)
            if current is None or current.phase is Phase.ENDED:
                return
            if current.stop_asked is None:
                self._store.change(current, stop_asked=time.time())
            run = self._run(current)
            if current.phase is Phase.QUEUED:
                self.finish_without_run(current, "")
            elif run is not None:
                engines.stop(run, now)

    def forget(self, job: StoredJob) -> None:
        """Removes a job and its logs here; the record of its run stays where all runs are."""
        with self._of(job):
            self._store.remove(job)
            shutil.rmtree(self._folder / LOGS / job.uid, ignore_errors=True)
        with self._lock:
            self._logs = {key: log for key, log in self._logs.items() if key[0] != job.uid}
            self._locks.pop(job.uid, None)

    def reap(self) -> None:
        """Notices what the processes that were started for runs have come to. Called now and then."""
        now = time.monotonic()
        kept: list[tuple[Handle, float | None]] = []
        for handle, ended in self._handles:
            handle.settle()
            since = ended if ended is not None or not handle.run.finished else now
            if since is None or now - since < _REAP_SECONDS:
                kept.append((handle, since))
        self._handles = kept

    def job_names(self) -> list[str]:
        """Returns the names of the jobs that have logs."""
        return self._store.names()

    def streams(self, job_name: str) -> list[LogStream]:
        """Returns the log streams of a job, one a host, with all that is written by now."""
        job = self._store.find(job_name)
        if job is None or not job.run_id:
            return []
        with self._of(job):
            run = self._run(job)
            if run is not None and job.phase is Phase.RUNNING and not self.settle(job):
                self._take_logs(job, run, final=False)
            begun, hosts = self._places(job, run)
            return [LogStream(f"{job.name}/{host}-{int(begun)}", self._log(job, host, begun), begun) for host in hosts]

    def _take_logs(self, job: StoredJob, run: Run, final: bool) -> None:
        begun, hosts = self._places(job, run)
        for host in hosts:
            self._log(job, host, begun).take(run.paths, host, final)

    def _places(self, job: StoredJob, run: Run | None) -> tuple[float, list[str]]:
        """Returns when the streams of a job begin, and its hosts; of a run that is gone, those that have a file."""
        if run is not None:
            hosts = [host for group in planned_groups(run.paths) for host in group.hosts]
            return run.header.created, sorted(hosts)
        return job.created, sorted(path.stem for path in (self._folder / LOGS / job.uid).glob("*.log"))

    def _log(self, job: StoredJob, host: str, begun: float) -> MergedLog:
        with self._lock:
            key = (job.uid, host)
            if key not in self._logs:
                path = self._folder / LOGS / job.uid / f"{host}.log"
                self._logs[key] = MergedLog(path, f"headrace: {job.note}", begun)
            return self._logs[key]

    def _of(self, job: StoredJob) -> contextlib.AbstractContextManager[object]:
        with self._lock:
            return self._locks.setdefault(job.uid, threading.RLock())


def _base_path(paths: RunPaths) -> str:
    try:
        return read_header(paths).base_path
    except (OSError, msgspec.DecodeError):  # no run that anybody could use
        return ""


POLL_SECONDS = 0.1


class JobQueue:
    """The queue of an endpoint.

    Args:
        store: the jobs.
        runs: their runs.
        most: jobs that run at once.
    """

    def __init__(self, store: JobStore, runs: JobRuns, most: int) -> None:
        self._store = store
        self._runs = runs
        self._most = most
        self._changed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="job-queue")

    def start(self) -> None:
        """Takes up what an earlier endpoint left, and begins."""
        self._thread.start()

    def notice(self) -> None:
        """Says that there is a new job, or one less."""
        self._changed.set()

    def close(self) -> None:
        """Ends the thread. Jobs that run go on."""
        self._stopping = True
        self._changed.set()
        self._thread.join()

    def stop_jobs(self, seconds: float) -> list[str]:
        """Stops all jobs that run and waits for their end. Called after `close`.

        Args:
            seconds: at most so long; then they are killed.

        Returns:
            The names of those that have not ended all the same.
        """
        deadline = time.monotonic() + seconds
        killed = False
        for job in self._store.in_phase(Phase.RUNNING):
            self._runs.stop(job)
        while left := [job for job in self._store.in_phase(Phase.RUNNING) if not self._runs.settle(job)]:
            if time.monotonic() > deadline:
                if killed:
                    return [job.name for job in left]
                killed, deadline = True, deadline + 30.0
                for job in left:
                    self._runs.stop(job, now=True)
            time.sleep(POLL_SECONDS)
        return []

    def _work(self) -> None:
        for job in self._store.in_phase(Phase.STARTING):
            self._runs.resume(job)
        while not self._stopping:
            busy = self._step()
            self._changed.wait(POLL_SECONDS if busy else None)
            self._changed.clear()

    def _step(self) -> bool:
        """Looks at what runs and starts what may. Returns whether anything runs."""
        running = self._store.in_phase(Phase.RUNNING)
        going = 0
        for job in running:
            try:
                going += not self._runs.settle(job)
            except (HeadraceError, OSError, msgspec.DecodeError) as error:
                going += 1
                _log.warning("%s: its run cannot be looked at now: %s", job.name, error)
        self._runs.reap()
        queued = self._store.in_phase(Phase.QUEUED) if going < self._most else []
        for job in queued[: self._most - going]:
            self._runs.begin(job)
        return bool(running or queued)

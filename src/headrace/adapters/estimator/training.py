"""A job that an estimator has started, as the SDK's `latest_training_job`, and the session that knows it by name."""

from __future__ import annotations

from headrace.errors import UsageError
from headrace.job import Job, RunHandle, run_handle
from headrace.runs import Run
from headrace.runs.describe import describe


class TrainingJob:
    """One started job.

    Args:
        run: the run.
        job: what it runs.
    """

    def __init__(self, run: RunHandle, job: Job) -> None:
        self._handle = run
        self._job = job

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r})"

    @property
    def name(self) -> str:
        """Id of the run; `headrace logs` and `headrace status` take it."""
        return self._handle.id

    job_name = name

    def describe(self) -> dict[str, object]:
        """Returns the job in the shape of DescribeTrainingJob."""
        return describe(Run.open(self.name))

    @property
    def model_data(self) -> str | None:
        """Where the model lies, None when there is none (yet)."""
        artefacts = self.describe().get("ModelArtifacts")
        return str(artefacts["S3ModelArtifacts"]) if isinstance(artefacts, dict) else None

    def logs(self, follow: bool = False) -> None:
        """Prints the output of all programs; `follow` goes on to the end of the run."""
        run_handle.show(self._handle.logs(follow=follow))

    def wait(self, logs: bool = True) -> None:
        """Waits for the end.

        Args:
            logs: print the output of all programs meanwhile, and what the run does before and after them.

        Raises:
            RunFailed: it did not succeed.
        """
        run_handle.wait_for_success(self._handle, logs=logs, hint_after=self._job.hint_after)

    def stop(self) -> None:
        """Stops the job."""
        self._handle.stop()


class Session:
    """Takes the place of the SDK's session: finds the estimator's jobs by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, TrainingJob] = {}

    def add(self, job: TrainingJob) -> TrainingJob:
        """Adds a job and returns it."""
        self._jobs[job.name] = job
        return job

    def logs_for_job(self, job_name: str, wait: bool = False) -> None:
        """Prints the output of a job; `wait` goes on to its end.

        Raises:
            UsageError: no job of that name was started here.
        """
        self._job(job_name).logs(follow=wait)

    def describe_training_job(self, job_name: str) -> dict[str, object]:
        """Returns a job in the shape of DescribeTrainingJob. Raises UsageError."""
        return self._job(job_name).describe()

    def stop_training_job(self, job_name: str) -> None:
        """Stops a job. Raises UsageError."""
        self._job(job_name).stop()

    def _job(self, name: str) -> TrainingJob:
        if name not in self._jobs:
            raise UsageError(f"no job named {name!r} was started by this estimator")
        return self._jobs[name]

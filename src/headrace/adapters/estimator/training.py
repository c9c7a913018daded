"""A job that an estimator has started, as the SDK's `latest_training_job`."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from headrace.errors import NotAvailable, RunFailed
from headrace.job import Job, RunHandle, run_handle
from headrace.runs import Run
from headrace.runs.describe import describe
from headrace.runs.store import job_name_of

OTHERWISE = "what there is: see the page sagemaker of the docs; for all of the SDK run it itself against headrace serve"


def not_available(what: str, name: str, instead: Mapping[str, str]) -> AttributeError:
    """Returns the error for what only the SDK's class has.

    Args:
        what: headrace's own, in words.
        name: that it was asked for.
        instead: what to do, by name.
    """
    if name.startswith("_"):
        return AttributeError(f"{what} has no {name}")
    return NotAvailable(f"{what} of headrace has no {name!r}", instead.get(name, OTHERWISE))


class TrainingJob:
    """One started job.

    Args:
        run: the run.
        job: what it runs, if its failure may be explained by it.
    """

    def __init__(self, run: RunHandle, job: Job | None = None) -> None:
        self._handle = run
        self._job = job

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the job; `headrace logs` and `headrace status` take it, and then mean its newest run."""
        return job_name_of(self._handle.id)

    job_name = name

    @property
    def run_id(self) -> str:
        """Id of the run; every command takes it."""
        return self._handle.id

    def describe(self) -> dict[str, object]:
        """Returns the job in the shape of DescribeTrainingJob."""
        return describe(Run.open(self.run_id))

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
            RunFailed: it has failed. One that was stopped is no failure, as in the SDK: standard error says so.
        """
        try:
            run_handle.wait_for_success(self._handle, logs=logs, job=self._job)
        except RunFailed as error:
            if self._handle.status.value != "Stopped":
                raise
            print(f"headrace: {error.message}; see whether it has made what you need", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Stops the job."""
        self._handle.stop()

"""What the user asks for: a training job, its groups, channels and options, and every rule about them.

    load_job("job.yaml", ["hyperparameters.epochs=3"])      a job file
    Job("digits", source_dir="code", ...)                   the same from Python

Both raise `headrace.errors.JobInvalid` with all problems at once. Pure data: nothing is started here.
"""

from headrace.job.job import Job, load_job
from headrace.job.model.fields import InstanceGroup, LocalOptions, TrainingInput
from headrace.job.run_handle import RunHandle

__all__ = [
    "InstanceGroup",
    "Job",
    "LocalOptions",
    "RunHandle",
    "TrainingInput",
    "load_job",
]

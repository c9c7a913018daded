"""Options of each engine, side by side: the rest of a job is the same everywhere."""

from __future__ import annotations

from headrace.job.model.frozen_model import Part
from headrace.job.model.kubernetes_options import KubernetesOptions
from headrace.job.model.local_options import LocalOptions
from headrace.job.model.sagemaker_options import SageMakerOptions
from headrace.job.model.slurm_options import SlurmOptions


class Engines(Part):
    """Options of each engine; the rest of the job is the same everywhere.

    Attributes:
        local: one machine plays all hosts.
        slurm: a node of a Slurm cluster is a host.
        kubernetes: a pod of a Kubernetes cluster is a host.
        sagemaker: an instance of Amazon SageMaker is a host.
    """

    local: LocalOptions = LocalOptions()
    slurm: SlurmOptions | None = None
    kubernetes: KubernetesOptions | None = None
    sagemaker: SageMakerOptions | None = None

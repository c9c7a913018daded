"""Distributions: how ranks that belong together are started, and on which groups."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from headrace.job.model import field_types
from headrace.job.model.frozen_model import Part


class Elastic(Part):
    """torchrun's elasticity: the world may shrink and be started again.

    Attributes:
        min_hosts: hosts that are enough to go on.
        max_restarts: how often the ranks are started again.
    """

    min_hosts: field_types.Hosts
    max_restarts: field_types.Restarts = 0


class TorchDistributed(Part):
    """PyTorch's launcher on every host of the distribution's groups.

    Attributes:
        enabled: whether it is used.
        processes_per_host: ranks a host, at least 1; by default one for each GPU of the instance type, at least one.
        elastic: the world may shrink and be started again; by default it is fixed.
    """

    enabled: field_types.Flag
    processes_per_host: field_types.Processes | None = None
    elastic: Elastic | None = None


class Mpi(Part):
    """mpirun over the hosts of the distribution's groups.

    Attributes:
        enabled: whether it is used.
        processes_per_host: ranks a host, at least 1; by default one for each GPU of the instance type, at least one.
        custom_mpi_options: further arguments of mpirun, divided at blanks.
    """

    enabled: field_types.Flag
    processes_per_host: field_types.Processes | None = None
    custom_mpi_options: field_types.MpiOptions = ""


class Switch(Part):
    """A way of starting ranks that has no options.

    Attributes:
        enabled: whether it is used.
    """

    enabled: field_types.Flag


class Launcher(Part):
    """A launcher of SageMaker's own over mpirun.

    Attributes:
        enabled: whether it is used.
        custom_mpi_options: further arguments of mpirun, divided at blanks.
    """

    enabled: field_types.Flag
    custom_mpi_options: field_types.MpiOptions = ""


class Library(Part):
    """A library of SageMaker's own, started by its own launcher.

    Attributes:
        enabled: whether it is used.
        custom_mpi_options: further arguments of mpirun, divided at blanks.
        parameters: options of the model-parallel library.
    """

    enabled: field_types.Flag
    custom_mpi_options: field_types.MpiOptions = ""
    parameters: Annotated[dict[str, JsonValue], field_types.AsMapping] = Field(default_factory=dict)


class SmDistributed(Part):
    """SageMaker's distributed training libraries. They run on SageMaker only.

    Attributes:
        dataparallel: the data-parallel library.
        modelparallel: the model-parallel library; it is started by `mpi`.
    """

    dataparallel: Library | None = None
    modelparallel: Library | None = None


STRATEGIES = (
    "torch_distributed",
    "mpi",
    "horovod",
    "multi_worker_mirrored_strategy",
    "smdistributed",
    "parameter_server",
    "pytorchddp",
    "pytorchxla",
)
"""Keys of a distribution that each name a way to start ranks."""


class Distribution(Part):
    """How the entry point is started when its ranks belong together. One way is enabled at most.

    Attributes:
        torch_distributed: torchrun.
        mpi: mpirun.
        horovod: mpirun with Horovod's environment.
        multi_worker_mirrored_strategy: one process a host, with `TF_CONFIG` for the hosts of the groups.
        smdistributed: SageMaker's own libraries; on SageMaker only.
        parameter_server: TensorFlow 1's parameter servers; on SageMaker only.
        pytorchddp: SageMaker's launcher for PyTorch DDP over mpirun; on SageMaker only.
        pytorchxla: PyTorch XLA's launcher; on SageMaker only.
        instance_groups: groups that the ranks span, in rank order; required when the job has several groups. A group
            belongs to one distribution at most.
    """

    torch_distributed: TorchDistributed | None = None
    mpi: Mpi | None = None
    horovod: Mpi | None = None
    multi_worker_mirrored_strategy: Switch | None = None
    smdistributed: SmDistributed | None = None
    parameter_server: Switch | None = None
    pytorchddp: Launcher | None = None
    pytorchxla: Switch | None = None
    instance_groups: field_types.GroupNames | None = None

    @property
    def kind(self) -> str:
        """How ranks are started: `mpi` for Horovod too, `smdistributed.dataparallel` ...; empty when not at all."""
        libraries = self.smdistributed or SmDistributed()
        if libraries.modelparallel and libraries.modelparallel.enabled:  # it is given together with mpi
            return "smdistributed.modelparallel"
        if libraries.dataparallel and libraries.dataparallel.enabled:
            return "smdistributed.dataparallel"
        names = (
            name for name in STRATEGIES if name != "smdistributed" and getattr(getattr(self, name), "enabled", False)
        )
        name = next(names, "")
        return "mpi" if name == "horovod" else name

    @property
    def is_horovod(self) -> bool:
        """Whether the ranks of mpirun get Horovod's environment."""
        return self.horovod is not None and self.horovod.enabled

    @property
    def processes_per_host(self) -> int | None:
        """Ranks on each host, as the user gave it."""
        if self.kind == "torch_distributed" and self.torch_distributed:
            return self.torch_distributed.processes_per_host
        launcher = self._mpirun
        return launcher.processes_per_host if launcher else None

    @property
    def custom_mpi_options(self) -> str:
        """Further arguments of mpirun; empty for other kinds."""
        launcher = self._mpirun
        return launcher.custom_mpi_options if launcher else ""

    @property
    def elastic(self) -> Elastic | None:
        """torchrun's elasticity; None means a fixed world."""
        return self.torch_distributed.elastic if self.kind == "torch_distributed" and self.torch_distributed else None

    @property
    def _mpirun(self) -> Mpi | None:
        return next((launcher for launcher in (self.mpi, self.horovod) if launcher and launcher.enabled), None)

"""What a rank gets: its host's variables, and over them what mpirun gave it."""

import pytest

from headrace.agent.launchers.mpi_command import (
    horovod_variables,
    launcher_variables,
    machine_variables,
    rank_of,
    rank_variables,
)

HOST = {"PATH": "/bin", "SM_CURRENT_HOST": "algo-2", "TMPDIR": "/home/tmp", "MINE": "1", "PWD": "/there"}
LAUNCHER = {"PATH": "/bin", "SM_CURRENT_HOST": "algo-2", "TMPDIR": "/scratch", "MINE": "1", "PWD": "/there"}
SEEN = {**LAUNCHER, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


def test_what_mpirun_adds_or_changes_reaches_the_rank():
    seen = SEEN | {"MINE": "2", "PATH": "/opt/bin:/bin"}
    variables = rank_variables(HOST, LAUNCHER, seen)
    assert variables["OMPI_COMM_WORLD_RANK"] == "3"
    assert variables["MINE"] == "2"
    assert variables["PATH"] == "/opt/bin:/bin"


def test_what_was_for_mpirun_only_does_not():
    assert rank_variables(HOST, LAUNCHER, SEEN)["TMPDIR"] == "/home/tmp"


def test_a_path_that_mpirun_forwards_leads_to_the_python_of_the_ranks_own_host():
    host = HOST | {"VIRTUAL_ENV": "/tmp/.python-algo-2", "PATH": "/tmp/.python-algo-2/bin:/bin"}
    seen = SEEN | {"VIRTUAL_ENV": "/tmp/.python-algo-1", "PATH": "/opt/bin:/tmp/.python-algo-1/bin:/bin"}
    variables = rank_variables(host, LAUNCHER, seen)
    assert variables["PATH"] == "/opt/bin:/tmp/.python-algo-2/bin:/bin"
    assert variables["VIRTUAL_ENV"] == "/tmp/.python-algo-2"


@pytest.mark.parametrize("name", ["SM_CURRENT_HOST", "SAGEMAKER_BASE_DIR", "HEADRACE_METRICS", "CURRENT_HOST", "PWD"])
def test_what_says_who_the_host_is_cannot_be_forwarded(name):
    host = HOST | {name: "own"}
    assert rank_variables(host, LAUNCHER, SEEN | {name: "of algo-1"})[name] == "own"


def test_the_rank_is_what_mpirun_says():
    assert rank_of(SEEN) == (3, 1)
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_RANK"):
        rank_of({})


def test_mpirun_works_in_the_hosts_scratch_and_finds_the_programs_beside_the_interpreter():
    variables = launcher_variables(HOST, scratch="/scratch", programs="/venv/bin")
    assert variables["TMPDIR"] == "/scratch"
    assert variables["PATH"] == "/venv/bin:/bin"
    assert launcher_variables(HOST, scratch="", programs="").items() >= (HOST | {"HWLOC_COMPONENTS": "-gl"}).items()
    mine = HOST | {"HWLOC_COMPONENTS": "-pci", "OMPI_MCA_ras": "simulator"}
    assert launcher_variables(mine, scratch="", programs="").items() >= mine.items()


def test_hosts_of_one_machine_have_shared_memory_of_their_own():
    variables = machine_variables("/scratch", crowded=False)
    assert {value for name, value in variables.items() if name.startswith("OMPI")} == {"/scratch"}
    assert "OMPI_MCA_btl_vader_backing_directory" in variables
    assert machine_variables("", crowded=True)["OMPI_MCA_mpi_yield_when_idle"] == "1"


@pytest.mark.promise("sagemaker-differences", "absent here: MPI_Init hangs when ports 6000 to 6009 serve data")
def test_a_data_service_on_the_ports_of_displays_is_not_asked_for_one():
    assert machine_variables("", crowded=False) == {"HWLOC_COMPONENTS": "-gl"}


def test_horovod_gets_what_its_own_launcher_sets():
    seen = SEEN | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert horovod_variables(seen, "algo-2", 1, 2) == {
        "HOROVOD_CONTROLLER": "mpi",
        "HOROVOD_CPU_OPERATIONS": "mpi",
        "HOROVOD_HOSTNAME": "algo-2",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
    }

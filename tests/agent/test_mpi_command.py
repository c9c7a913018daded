"""The command lines of mpirun, for each version that is known."""

import shlex

import pytest

from headrace.agent.launchers.mpi_command import Slots, mpirun_command, parse_version, split_options

HOSTS = [Slots("algo-1", 2), Slots("algo-2", 2)]
GOLDEN_4 = """
mpirun --host algo-1:2,algo-2:2 -np 4 --allow-run-as-root --leave-session-attached --bind-to none --map-by slot
-mca btl_tcp_if_include eth0 -mca oob_tcp_if_include eth0
-mca plm_rsh_agent 'python proxy.py daemon' -mca plm_rsh_no_tree_spawn 1
-mca pml ob1 -mca btl '^openib,uct,ofi' -mca orte_abort_on_non_zero_status 1
-mca btl_vader_single_copy_mechanism none
-x NCCL_SOCKET_IFNAME=eth0 -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH
python proxy.py rank mpi4py
"""
GOLDEN_5 = """
mpirun --host algo-1:2,algo-2:2 -np 4 --allow-run-as-root --leave-session-attached --bind-to none --map-by slot
--prtemca prte_if_include eth0
--prtemca plm_ssh_agent 'python proxy.py daemon' --prtemca plm_ssh_no_tree_spawn 1
--mca btl_tcp_if_include eth0 --mca pml ob1 --mca btl '^uct,ofi' --mca smsc '^cma,knem,xpmem'
-x NCCL_SOCKET_IFNAME=eth0 -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH
python proxy.py rank mpi4py
"""


def command(version=(4, 1, 4), hosts=HOSTS, options=(), environment=None, interface="eth0"):
    return mpirun_command(
        version,
        hosts,
        interface=interface,
        daemon_agent=["python", "proxy.py", "daemon"],
        program=["python", "proxy.py", "rank", "mpi4py"],
        environment={"PATH": "/bin", "LD_LIBRARY_PATH": "/lib"} if environment is None else environment,
        options=shlex.split(options) if isinstance(options, str) else options,
    )


@pytest.mark.parametrize(("version", "golden"), [((4, 0, 3), GOLDEN_4), ((4, 1, 4), GOLDEN_4), ((5, 0, 11), GOLDEN_5)])
@pytest.mark.promise("sagemaker-differences", "absent here: `-np` is the number of one host (SDK 3)")
def test_the_whole_command_line(version, golden):
    assert command(version) == shlex.split(golden)


@pytest.mark.parametrize("version", [(3, 1, 6), (6, 0, 0)])
def test_other_versions_are_refused_with_those_that_are_known(version):
    with pytest.raises(ValueError, match="is not known here; known are 4 and 5"):
        command(version)


def test_version_5_is_refused_where_hosts_share_the_loopback_interface():
    with pytest.raises(ValueError, match="use Open MPI 4, or `isolation: namespace`"):
        command((5, 0, 11), interface="lo")
    assert "lo" in command(interface="lo")


def test_a_host_with_one_rank_has_no_number():
    words = command(hosts=[Slots("algo-1", 1), Slots("algo-2", 3)])
    assert words[1:5] == ["--host", "algo-1,algo-2:3", "-np", "4"]


def test_variables_that_are_not_set_are_not_forwarded():
    words = command(environment={"PATH": "/bin", "LD_LIBRARY_PATH": ""})
    assert "LD_LIBRARY_PATH" not in words
    assert "PATH" in words


def test_the_users_options_stand_after_ours_and_before_the_program():
    words = command(options="-x 'A=b c' --timeout 60")
    assert words[-8:] == ["-x", "A=b c", "--timeout", "60", "python", "proxy.py", "rank", "mpi4py"]


@pytest.mark.parametrize("option", ["-mca", "--mca", "-gmca", "--gmca"])
def test_a_parameter_of_the_user_replaces_ours_because_mpirun_refuses_two(option):
    words = command(options=f"{option} pml ucx")
    assert words.count("pml") == 1
    assert words[words.index("pml") + 1] == "ucx"


def test_a_parameter_of_the_user_for_version_5():
    words = command((5, 0, 1), options="--prtemca prte_if_include eth1")
    assert words.count("prte_if_include") == 1


@pytest.mark.parametrize(
    ("options", "level", "rest"),
    [
        ("", "INFO", []),
        ("--NCCL_DEBUG WARN -verbose", "WARN", ["-verbose"]),
        ("-verbose --NCCL_DEBUG=VERSION", "VERSION", ["-verbose"]),
        ("--NCCL_DEBUG WARN --NCCL_DEBUG TRACE", "TRACE", []),
        ("-x NCCL_DEBUG=WARN", "INFO", ["-x", "NCCL_DEBUG=WARN"]),
    ],
)
def test_the_pseudo_option_for_nccl(options, level, rest):
    assert split_options(options.split()) == (rest, level)


def test_the_pseudo_option_needs_its_value():
    with pytest.raises(ValueError, match="--NCCL_DEBUG needs a value"):
        split_options(["--NCCL_DEBUG"])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", (4, 1, 4)),
        ("mpirun (Open MPI) 5.0.11\n", (5, 0, 11)),
        ("mpirun (Open MPI) 5.1.0rc2\n", (5, 1, 0)),
        ("HYDRA build details:\n    Version: 4.0.2", None),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", None),
        ("", None),
    ],
)
def test_versions(text, version):
    assert parse_version(text) == version

"""What mpirun gives its ssh is read without a shell, and only daemons of Open MPI are run."""

import pytest

from headrace.agent.launchers.mpi_command import daemon_name, expand, parse_daemon

VERSION_4 = [" orted", "-mca", "ess", '"env"', "-mca", "orte_node_regex", '"algo-[1:1-2]@0(2)"', "-mca"]
VERSION_4 += ["orte_hnp_uri", '"1;tcp://10.0.0.1:9"', "-mca", "plm_rsh_agent", '"python proxy.py daemon"']
VERSION_5 = [
    "PRTE_PREFIX=/opt/mpi;export PRTE_PREFIX;LD_LIBRARY_PATH=/opt/mpi/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;"
    "/opt/mpi/bin/prted",
    "--prtemca",
    "prte_hnp_uri",
    '"prterun-1@0.0;tcp://10.0.0.1:48101:24"',
]


def test_version_4_quotes_the_arguments():
    argv, variables = parse_daemon(VERSION_4)
    assert argv[0] == "orted"
    assert argv[argv.index("orte_node_regex") + 1] == "algo-[1:1-2]@0(2)"
    assert argv[argv.index("orte_hnp_uri") + 1] == "1;tcp://10.0.0.1:9"
    assert argv[-1] == "python proxy.py daemon"
    assert variables == {}
    assert daemon_name(argv) == "orted"


def test_version_5_sets_variables_before():
    argv, variables = parse_daemon(VERSION_5)
    assert argv == ["/opt/mpi/bin/prted", "--prtemca", "prte_hnp_uri", "prterun-1@0.0;tcp://10.0.0.1:48101:24"]
    assert variables == {"PRTE_PREFIX": "/opt/mpi", "LD_LIBRARY_PATH": "/opt/mpi/lib:$LD_LIBRARY_PATH"}
    assert daemon_name(argv) == "prted"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["sh", "-c", "id"],
        ["orted-other"],
        ["/bin/sh", "orted"],
        ["LD_PRELOAD=/tmp/x.so;export LD_PRELOAD;orted"],
        ["PATH=/x;id;orted"],
        ["(orted)"],
        ["'orted"],
    ],
)
@pytest.mark.promise("sagemaker-differences", "absent here: sshd as root, with a key in every copy of the image")
def test_nothing_else_is_run(words):
    with pytest.raises(ValueError):
        parse_daemon(words)


def test_what_follows_the_daemon_is_an_argument_and_no_command():
    with pytest.raises(ValueError):
        parse_daemon(["orted;", "rm", "-rf", "/"])
    assert parse_daemon(["orted", "$(id)", "`id`", "&&", "id"])[0] == ["orted", "$(id)", "`id`", "&&", "id"]


def test_references_are_resolved_on_the_host_and_unknown_names_left_out():
    variables = {"LD_LIBRARY_PATH": "/opt/lib:$LD_LIBRARY_PATH", "PATH": "/opt/bin:$PATH", "LD_PRELOAD": "x"}
    resolved = expand(variables, {"PATH": "/bin"})
    assert resolved == {"LD_LIBRARY_PATH": "/opt/lib", "PATH": "/opt/bin:/bin"}

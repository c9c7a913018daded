"""Programs that start ranks in headrace's place: torchrun (elastic) and mpirun. All other ranks, the usual ones, are
planned in `headrace.agent.program_specs` and started by `headrace.agent.host.programs`.

MPI: mpirun on the first host of a world, its daemons on the others, the ranks as programs of their own hosts.

    the first host's agent ─▶ mpi_command ─▶ mpirun ─▶ launcher_proxy daemon HOST ... ─▶ agent ─▶ coordinator
                           ─▶ HOST's agent ─▶ orted
    mpirun, orted ─▶ launcher_proxy rank ─▶ the agent of that host ─▶ the user's program

mpirun needs neither ssh nor keys: its ``plm_rsh_agent`` is `headrace.agent.host.launcher_proxy`, which asks the agent
of its host, and the request travels on the control connection. What mpirun and its daemons start on a host is the same
proxy; the rank itself is started by that host's agent. So a rank has that host's variables, its output has a log of its
own, and its exit code or signal is known, whatever mpirun reports.

    elastic_torchrun   torchrun on this host, and the ranks that it wants
    launched_ranks     what torchrun and MPI have in common, and the socket at which proxies ask
    mpi_command        the command lines and variables of mpirun, its daemons and the ranks, and what becomes mpirun
    mpi_host           the agent's part

The coordinator's part is `coordinator.mpi_daemons`: which host asked for which daemon, how it ended, and what the end
of mpirun means.

This package imports nothing when it is imported.
"""

"""MPI: mpirun on the first host of a world, its daemons on the others, the ranks as programs of their own hosts.

    the first host's agent ─▶ launch ─▶ mpirun ─▶ proxy daemon HOST ... ─▶ agent ─▶ coordinator ─▶ HOST's agent ─▶ orted
    mpirun, orted ─▶ proxy rank ─▶ the agent of that host ─▶ the user's program

mpirun needs neither ssh nor keys: its ``plm_rsh_agent`` is `headrace.agent.proxy`, which asks the agent of its host,
and the request travels on the control connection. What mpirun and its daemons start on a host is the same proxy; the
rank itself is started by that host's agent. So a rank has that host's variables, its output has a log of its own, and
its exit code or signal is known, however mpirun puts it.

    command   the command line of mpirun, for the versions that are known (pure)
    launch    runs in place of mpirun until everything is known, then becomes it
    remote    the daemon's command line as mpirun hands it to ssh, without a shell (pure)
    daemons   which daemon was wanted by whom, and how it ended: the coordinator's part (pure)
    variables the variables of a rank: its host's, and those that mpirun gives it (pure)
    host      the agent's part
    outcome   what the end of mpirun means (pure)

This package imports nothing when it is imported.
"""

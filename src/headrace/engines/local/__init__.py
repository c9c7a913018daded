"""The local engine: this machine plays all instances of the job, each with an address and a tree of its own.

caller -> supervisor -> one agent a host -> programs

    engine           what `headrace.engines` calls: plan, check, start, stop, capabilities
    plan_hosts       job to launch plan (pure)
    checked_job      what `check` returns and `start` uses, and whether this machine can start the job
    isolation_plan   the level of isolation, and the layout of isolated hosts
    host_limits      CPUs, memory and GPUs of each host
    cgroups          the control groups of a run
    local_instances  the hosts as the supervisor sees them, and what starts their agents

This package imports nothing when it is imported: the supervisor must start fast.
"""

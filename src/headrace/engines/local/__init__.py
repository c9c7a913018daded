"""The local engine: this machine plays all instances of the job, each with an address and a tree of its own.

caller -> supervisor -> one agent a host -> programs

    engine           what `headrace.engines` calls: plan, check, start, stop
    local_capabilities  what works on this machine, and what to install
    plan_hosts       job to launch plan (pure)
    checked_job      what `check` returns and `start` uses
    checks           whether this machine can start the job
    isolation_plan   the layout of isolated hosts
    limits           CPUs, memory and GPUs of each host
    isolation        namespaces: each host a machine of its own
    local_instances  the hosts as the supervisor sees them; behind it `agents`
    local_run        the handle of a run

This package imports nothing when it is imported: the supervisor must start fast.
"""

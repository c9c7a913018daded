"""The local engine: this machine plays all instances of the job, each with an address and a tree of its own.

caller (or keeper) -> supervisor -> one agent a host -> programs

planning     job to launch plan (pure)
checks       what must be true of this machine
preparing    the run's directory: code, trees, plan, secret
starting     checks, prepares, starts the supervisor
handle       the caller's end of a run
supervisor   watches the agents and the caller, ends what is left, has the last word

This package imports nothing when it is imported: the supervisor must start fast.
"""

"""Isolation of the local engine's instances: each a machine of its own, see `headrace.hosting.isolation`.

With level `none` and `shared_network` hosts are addresses of 127.0.0.0/8, with `namespace` of a network of the job's.

    choice        the level that a job gets
    start_agents  the supervisor's side: the job's network, then the agents

This package imports nothing when it is imported.
"""

"""The agent: the process on every instance that starts, watches and stops its programs, and reports.

`python -m headrace.agent` is started once a host by an engine. It learns who it is from the instance's own tree
under $SAGEMAKER_BASE_DIR (`resourceconfig.json`, `plan.json`, the secret). The agent of `plan.leader` is also the
coordinator of the job.

    coordinator   the job's state machine: events in, effects out (pure)
    leader        runs the coordinator on the leader's host: clock, control port, event file
    host          the agent of one host: programs, output, metrics, data services, stop
    tfdata        one server of tf.data.service, a process of its own
    programs      what runs on a host (pure)
    messages      what agents and coordinator say, and the seal on every message (pure)
    control       carries sealed messages over gRPC
    running       one operating-system process: start, output, exit
    output        bytes of a program to log lines (pure)
    processes     the process table: descendants, CPU time, kill
    bootstrap     the few lines that run in a new process before the program

This package imports nothing when it is imported.
"""

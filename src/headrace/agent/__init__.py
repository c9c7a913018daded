"""The agent: the process on every instance that starts, watches and stops its programs, and reports.

`python -m headrace.agent` is started once a host by an engine. It learns who it is from the instance's own tree
under $SAGEMAKER_BASE_DIR (`resourceconfig.json`, `plan.json`, the secret). Its orders come from the job's
coordinator, which the supervisor runs.

    host_agent       the agent of one host: carries out the orders, reports, stops
    program_specs    which programs run on a host, and their command lines (pure)
    tf_data_server   one server of tf.data.service, a process of its own
    control/         messages between agents and coordinator, and the connections that carry them
    coordinator/     the job's state machine (pure), and `authority`, which runs it in the supervisor
    launchers/       torchrun and mpirun: they ask the agents for the ranks
    host/            one host's programs and data servers: start, environment, output, end
    metrics/         what a host and its programs use, and the values that they print

From bottom to top: `metrics`, `tf_data_server`, `program_specs`, `control`, `host`, `launchers`, `coordinator`,
`host_agent`. Processes are started, found and ended by `headrace.processes`.

This package imports nothing when it is imported.
"""

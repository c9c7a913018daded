"""The duties of a host around its agent, the same in every engine.

    inputs          what programs find when they start: code, requirements, facts that only the host knows
    helpers         programs beside the agents: install, stage, serve channels, restore, sync, collect
    machines        between the supervisors of a run on several machines: what they tell each other, and what travels
    supervision     the supervisor: prepares, runs and finishes hosts; what is left and removed
    isolation       namespaces that make a host a machine of its own

A machine plays one host of a job, or some, or all of them: `supervision.instances` is what an engine brings. This room
knows no engine and loads no library of the submitting side; what a `Job` says is worked out before, in
`engines.planning`, and lies in the run's directory.
"""

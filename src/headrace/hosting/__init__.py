"""The duties of a host around its agent, the same in every engine.

    inputs          what programs find when they start: code, requirements, the stage area of channels, certificates
    helpers         programs beside the agents: install, stage, serve channels, restore, sync, collect
    supervision     helper processes, attempts, the budget that is used, what is left and removed

A machine plays one host of a job, or some, or all of them. This room knows no engine and loads no library of the
submitting side; what a `Job` says is worked out before, in `engines.planning`, and lies in the run's directory.
"""

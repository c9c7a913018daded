"""The coordinator of a job: a state machine without I/O, its parts, and the shell (`authority`) that runs it."""

"""Rules between the fields of a job, and which of its values have no effect in an engine."""

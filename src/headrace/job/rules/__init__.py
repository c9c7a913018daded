"""What must hold between the fields of a job, and what of a job has no effect on this engine."""

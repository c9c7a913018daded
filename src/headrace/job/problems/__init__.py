"""What is wrong with a job, with file, line and field: findings, and how pydantic's errors become findings."""

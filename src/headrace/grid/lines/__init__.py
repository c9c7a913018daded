"""The lines of a grid: what differs from job to job."""

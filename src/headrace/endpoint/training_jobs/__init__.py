"""Training jobs as the service has them: created once, queued, run by an engine, described from the run's record.

job_store        the jobs of an endpoint, in SQLite
job_of_request   a request becomes a job, with paths for the endpoint's own buckets, or is refused
job_runs         the run of a job: started, followed, ended; its logs; the queue that starts what waits
description      DescribeTrainingJob, and the line of a list
training_service    the operations
"""

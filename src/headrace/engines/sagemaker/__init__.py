"""Jobs on Amazon SageMaker: the instances of a training job are the hosts.

What is pure comes first: `sagemaker_job` (the planned job and its CreateTrainingJob request), `iam_actions`,
`failure_reasons` (why a job failed, what it has cost). `boto_service` speaks to the service.
"""

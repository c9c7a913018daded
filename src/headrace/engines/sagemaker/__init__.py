"""Jobs on Amazon SageMaker: the instances of a training job are the hosts.

What is pure comes first: `sagemaker_job` (the planned job), `service_request` (the CreateTrainingJob request),
`iam_actions`, `failure_reasons` (why a job failed).
`service_calls` is how the service is spoken to, `boto_service` does it.
"""

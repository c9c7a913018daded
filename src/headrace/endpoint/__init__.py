"""`headrace serve`: SageMaker's API, and what its clients need of S3, Logs, STS and IAM, over any engine."""

"""What clients of training jobs ask of other services: logs, metrics, identities and roles.

service_models   shapes of requests, out of botocore's models
operations       one service: its operations by name, in JSON or Query
identities       STS and IAM
merged_log       the lines of a host in one order that never changes
cloudwatch_logs  log groups, streams and events
cloudwatch_metrics  statistics of a job's own metrics and of its hosts
"""

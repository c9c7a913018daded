"""What clients of training jobs ask of other services: logs, metrics, identities and roles.

service          one service: its operations by name, in JSON, as a form or by a path; STS and IAM
cloudwatch_logs  log groups, streams and events; the lines of a host in one order that never changes
cloudwatch_metrics  statistics of a job's own metrics and of its hosts
"""

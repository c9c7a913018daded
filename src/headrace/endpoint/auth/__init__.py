"""Who calls: keys, signatures, and what each key may do.

signatures    Signature Version 4 in a header or a query, version 2 in a query, and bodies compared with what was signed
gatekeeper    keys; Host, Origin, clock, key, signature: a request in, who sent it and for which service out
job_rights    what the key of a job may do in S3
"""

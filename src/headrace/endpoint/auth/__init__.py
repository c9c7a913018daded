"""Who calls: keys, signatures, and what each key may do.

access_keys   the two keys of a store: the user's, and that of the programs of jobs
signatures    Signature Version 4 in a header or a query, and version 2 in a query (presigned S3)
checked_body  a body that is compared with its signed hash, or its chunks with their signatures, while it is read
gatekeeper    Host, Origin, clock, key, signature: a request in, who sent it and for which service out
"""

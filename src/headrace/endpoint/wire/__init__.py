"""An AWS operation is a function from the members of its request to those of its answer, by botocore's shapes.

models     what a service refuses; protocols; operations and their shapes, out of `operations.json`
requests   members of requests in JSON, as forms, in addresses, headers and XML
answers    answers and errors in the caller's protocol
"""

"""HTTP for the endpoint: a threaded server whose heads, chunks and replies are h11's.

Sockets and threads, since most bytes are objects of S3: they go from the socket to the file and back without an event
loop between. Everything above this folder sees `HttpRequest` and `HttpReply` only.
"""

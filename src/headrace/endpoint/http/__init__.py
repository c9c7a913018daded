"""HTTP for the endpoint: a threaded server whose heads, chunks and replies are h11's.

Sockets and threads, since most bytes are objects of S3: they go from the socket to the file and back without an event
loop between. 300 MB take 0.9 CPU seconds up, hashes, signatures and the file included, and 0.07 down; a bare uvicorn
with h11 that hashes and writes the same took 1.3 and 0.5 on the same machine (2026-11-29). For 1,000 small objects it
was uvicorn that took less, 0.5 against 1.3, without signatures and rows.

Everything above this folder sees `HttpRequest` and `HttpReply` only.
"""

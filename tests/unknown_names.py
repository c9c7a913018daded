"""The name server of a box: it knows no name, and says so at once.

    python unknown_names.py ADDRESS

A query is answered with its own id and question, and the code for "no such name" (RFC 1035, 4.1.1).
"""

from __future__ import annotations

import os
import socket
import sys

PORT = 53
ANSWER = bytes.fromhex("8183")  # an answer, recursion desired and available, code 3
HEADER = 12
LARGEST = 65535


def main(address: str) -> None:
    """Returns when it answers at an address, and goes on in the background until the box goes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, PORT))
        if os.fork():
            return
        while True:
            query, peer = server.recvfrom(LARGEST)
            if len(query) > HEADER:
                server.sendto(answer(query), peer)


def answer(query: bytes) -> bytes:
    """Returns the answer to a query, which may be followed by records that ask for more (EDNS): they are left out."""
    end = HEADER
    while query[end : end + 1] not in (b"", b"\0"):
        end += 1 + query[end]
    question = query[HEADER : end + 5]  # the empty label, type and class
    return query[:2] + ANSWER + query[4:6] + bytes(6) + question


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The cluster's DNS: addresses of pods behind headless Services, from the API's Endpoints.

names.py ADDRESS API CA TOKEN
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
import urllib.request

KEPT = 0.5  # seconds for which an answer of the API is used
A, NO_ERROR, NAME_ERROR = 1, 0x8580, 0x8583


class Endpoints:
    """The names that the cluster knows: name to addresses."""

    def __init__(self, api: str, authority: str, token: str) -> None:
        self._context = ssl.create_default_context(cafile=authority)
        self._request = urllib.request.Request(f"{api}/api/v1/endpoints", headers={"Authorization": f"Bearer {token}"})
        self._read_at = float("-inf")
        self._names: dict[str, list[str]] = {}

    def names(self) -> dict[str, list[str]]:
        """Returns them as they were at most `KEPT` seconds ago."""
        if time.monotonic() - self._read_at > KEPT:
            with urllib.request.urlopen(self._request, context=self._context, timeout=5) as answer:
                self._names = named(json.load(answer)["items"])
            self._read_at = time.monotonic()
        return self._names


def named(endpoints: list[dict[str, object]]) -> dict[str, list[str]]:
    """Returns the addresses of each Service, and of each of its pods that has a host name."""
    found: dict[str, list[str]] = {}
    for each in endpoints:
        meta: dict[str, str] = each["metadata"]  # type: ignore[assignment]
        service = f"{meta['name']}.{meta['namespace']}.svc.cluster.local"
        subsets: list[dict[str, list[dict[str, str]]]] = each.get("subsets") or []  # type: ignore[assignment]
        for address in (one for subset in subsets for one in subset.get("addresses") or []):
            found.setdefault(service, []).append(address["ip"])
            if "hostname" in address:
                found.setdefault(f"{address['hostname']}.{service}", []).append(address["ip"])
    return found


def answer(query: bytes, names: dict[str, list[str]]) -> bytes:
    """Returns the answer to one question; TTL 2 s."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode().lower())
        at += 1 + length
    (kind,) = struct.unpack_from(">H", query, at + 1)
    name = ".".join(labels)
    addresses = names.get(name, []) if kind == A else []
    head = query[:2] + struct.pack(">HHHHH", NO_ERROR if name in names else NAME_ERROR, 1, len(addresses), 0, 0)
    records = [b"\xc0\x0c" + struct.pack(">HHIH", A, 1, 2, 4) + socket.inet_aton(one) for one in addresses]
    return head + query[12 : at + 5] + b"".join(records)


def main(address: str, api: str, authority: str, token: str) -> None:
    """Answers until it is killed."""
    endpoints = Endpoints(api, authority, token)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            query, peer = server.recvfrom(512)
            try:
                reply = answer(query, endpoints.names())
            except OSError as error:  # the API does not answer: who asked asks again
                print(f"no answer: {error}", flush=True)
                continue
            server.sendto(reply, peer)


if __name__ == "__main__":
    main(*sys.argv[1:])

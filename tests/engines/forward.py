"""Passes on connections: `python forward.py PORT TO_PORT`. For a server that is away and comes back."""

import socket
import sys
import threading


def pump(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
        for pair in ((client, server), (server, client)):
            threading.Thread(target=pump, args=pair, daemon=True).start()

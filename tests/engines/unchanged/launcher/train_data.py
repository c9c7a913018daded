"""On every host: workers that hand out numbers (6001 ...); on one, also the dispatcher that knows them all (6000)."""

# ruff: noqa

import argparse
import json
import os
import socket
import socketserver
import threading
import time


class Dispatcher(socketserver.StreamRequestHandler):
    workers = []

    def handle(self):
        word, *arguments = self.rfile.readline().split()
        if word == b"register":
            self.workers.append(arguments[0].decode())
        self.wfile.write(json.dumps(sorted(self.workers)).encode() + b"\n")


class Worker(socketserver.StreamRequestHandler):
    def handle(self):
        first, count = map(int, self.rfile.readline().split())
        time.sleep(0.01)  # as if it were work
        numbers = {"host": os.environ["SM_CURRENT_HOST"], "numbers": list(range(first, first + count))}
        self.wfile.write(json.dumps(numbers).encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def serve(port, handler):
    server = Server(("", port), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
    return server


def register(dispatcher_host, address):
    for _ in range(100):
        try:
            with socket.create_connection((dispatcher_host, 6000), timeout=10) as connection:
                connection.sendall(f"register {address}\n".encode())
                connection.recv(1000)
                return
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit(f"no dispatcher on {dispatcher_host}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dispatcher_host")
    parser.add_argument("--num_of_data_workers", type=int, default=1)
    args, _ = parser.parse_known_args()
    host = os.environ["SM_CURRENT_HOST"]
    servers = []
    if host == args.dispatcher_host:
        servers.append(serve(6000, Dispatcher))
    for index in range(args.num_of_data_workers):
        servers.append(serve(6001 + index, Worker))
        register(args.dispatcher_host, f"{host}:{6001 + index}")
    with socket.socket() as listener:
        listener.bind(("", 16000))
        listener.listen(1)
        _, (peer, _) = listener.accept()
    print("shutdown request received from", socket.gethostbyaddr(peer)[0], flush=True)
    for server in servers:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()

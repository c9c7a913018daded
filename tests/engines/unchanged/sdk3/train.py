"""What a user of ModelTrainer wrote: hosts of one group find each other by the names in the platform's file."""

# ruff: noqa

import json
import os
import socket
import sys
import time
from pathlib import Path

me, peers = os.environ["SM_CURRENT_HOST"], json.loads(os.environ["MY_GROUP_HOSTS"])
data = sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])) if "SM_CHANNEL_TRAIN" in os.environ else None
print(me, os.environ["MY_GROUP"], peers, sys.argv[1:], data, flush=True)
if me == peers[0]:
    with socket.create_server(("0.0.0.0", 7777)) as server:
        server.settimeout(30)
        for _ in peers[1:]:
            connection, _ = server.accept()
            with connection:
                print(me, "met", connection.recv(100).decode(), flush=True)
    Path("/opt/ml/model", f"{os.environ['MY_GROUP']}.txt").write_text(me)
else:
    for _ in range(300):
        try:
            with socket.create_connection((peers[0], 7777), timeout=10) as connection:
                connection.sendall(me.encode())
                break
        except ConnectionRefusedError:
            time.sleep(0.1)

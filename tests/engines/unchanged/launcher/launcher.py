"""Entry point on every host: data hosts serve numbers, dnn hosts train on them and then shut the data hosts down.

The roles come from the names of the groups; ports and host names are written into the programs. Run plainly or by MPI.
"""

import os
import socket
import subprocess
import sys
import time

from sagemaker_training import environment

SHUTDOWN_PORT = 16000


def start(script, *arguments):
    return subprocess.Popen(["python", "./" + script, *sys.argv[1:], *arguments])


def wait(process, name):
    code = process.wait()
    print(f"{name} closed with returncode={code}", flush=True)
    return code


def shut_down(host):
    for _ in range(12):
        try:
            with socket.create_connection((host, SHUTDOWN_PORT), timeout=10):
                print(f"shutdown request sent to {host}:{SHUTDOWN_PORT}", flush=True)
                return
        except OSError as error:
            print(f"{host} does not answer yet: {error}", flush=True)
            time.sleep(0.5)
    raise SystemExit(f"{host} cannot be shut down")


def main():
    env = environment.Environment()
    groups = env.instance_groups_dict
    data_hosts, dnn_hosts = groups["data_group"]["hosts"], groups["dnn_group"]["hosts"]
    dispatcher = ("--dispatcher_host", data_hosts[0])
    if env.current_instance_group == "data_group":
        return wait(start("train_data.py", *dispatcher), "train_data.py")

    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    local_rank = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    if local_rank == 0:  # the CPUs of this host prepare data, too
        start("train_data.py", *dispatcher)
    code = wait(start("train_dnn.py", *dispatcher), "train_dnn.py")
    if rank == 0:
        for host in [*data_hosts, *dnn_hosts]:
            shut_down(host)
    return code


if __name__ == "__main__":
    sys.exit(main())

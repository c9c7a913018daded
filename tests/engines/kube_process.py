"""A Kubernetes cluster in a process: `python kube_process.py FOLDER` makes FOLDER/kubeconfig, until its input ends.

For clients on another host, such as the login node of a Slurm cluster, in whose namespaces it is started.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kube_pods import Kubelet
from kube_server import KubeServer

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    pods = folder / "pods"
    pods.mkdir(parents=True)
    with KubeServer(folder) as server, Kubelet(server, pods):
        print(server.kubeconfig("kubeconfig"), flush=True)
        sys.stdin.read()
        print(sorted(name for _, _, name in server.objects), flush=True)

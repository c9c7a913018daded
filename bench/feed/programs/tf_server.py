"""A process of tf.data service: ``tf_server dispatcher`` or ``tf_server worker DISPATCHER_PORT``."""

from __future__ import annotations

import os
import sys

from bench.feed.servers import free_port

from headrace.child_python import die_with_parent

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main() -> None:
    """Entry point."""
    die_with_parent(os.getppid())
    import tensorflow as tf

    service = tf.data.experimental.service
    port = free_port()
    server: tf.data.experimental.service.DispatchServer | tf.data.experimental.service.WorkerServer
    if sys.argv[1] == "dispatcher":
        server = service.DispatchServer(service.DispatcherConfig(port=port))
    else:
        config = service.WorkerConfig(f"127.0.0.1:{sys.argv[2]}", f"127.0.0.1:{port}", port)
        server = service.WorkerServer(config)
    print(port, flush=True)
    server.join()


if __name__ == "__main__":
    main()

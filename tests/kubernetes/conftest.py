"""What needs a real Kubernetes cluster. `make kubernetes` starts one and runs these tests; nobody else finds them."""

import os

collect_ignore_glob = [] if "KUBERNETES_CLUSTER" in os.environ else ["*.py"]

"""Plays the user who runs a job: `python fault_caller.py SETTINGS run job.yaml` is `headrace run job.yaml`.

SETTINGS (JSON) makes limits of the product smaller, so that a fault that they bound ends soon:
`start_timeout` (seconds), `memory_mib` (what every one of two instances may use).
"""

import json
import sys

from headrace.cli.main import main
from headrace.engines.local import host_limits, plan_hosts

settings = json.loads(sys.argv.pop(1))
if "start_timeout" in settings:
    plan_hosts.START_TIMEOUT = settings["start_timeout"]
if "memory_mib" in settings:
    both = int(2 * settings["memory_mib"] * host_limits.MIB / (1 - host_limits.SYSTEM_PART)) + 9
    host_limits.LEAST_MEMORY = 64 * host_limits.MIB
    host_limits.available_memory = lambda places: both
if __name__ == "__main__":
    main()

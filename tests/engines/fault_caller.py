"""Plays the user who runs a job: `python fault_caller.py SETTINGS run job.yaml` is `headrace run job.yaml`.

SETTINGS (JSON) makes limits of the product smaller, so that a fault that they bound ends soon:
`start_timeout` (seconds), `memory_mib` (what every one of two instances may use).
"""

import json
import sys

from headrace.cli.main import main
from headrace.engines.local import plan_hosts
from headrace.engines.local.limits import assign, machine_capacity

settings = json.loads(sys.argv.pop(1))
if "start_timeout" in settings:
    plan_hosts.START_TIMEOUT = settings["start_timeout"]
if "memory_mib" in settings:
    both = int(2 * settings["memory_mib"] * assign.MIB / (1 - assign.SYSTEM_PART)) + 9
    assign.LEAST_MEMORY = 64 * assign.MIB
    machine_capacity.available_memory = lambda places: both
if __name__ == "__main__":
    main()

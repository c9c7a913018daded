"""How many hosts of data workers a job's trainers could use: a pure rule.

desired = ceil(1.15 * executors that the ranks would keep busy / executors of a host), at most four times what there is.
There are no more where the ranks hardly wait, or where a link is busy nearly all the time: another host would not help.
"""

from __future__ import annotations

import math

HEADROOM = 1.15
GROWTH = 4
STALL = 0.01
LINK_BUSY = 0.8


def desired_hosts(needed: float, executors: float, hosts: int, stall: float, link: float) -> int:
    """Returns how many hosts there should be, at least 1.

    Args:
        needed: executors that the ranks would keep busy if they never waited, all ranks together.
        executors: of a host.
        hosts: that serve now.
        stall: share of their time that the ranks wait.
        link: share of the time that the busiest connection was sending.
    """
    wanted = math.ceil(HEADROOM * needed / max(1.0, executors))
    if wanted > hosts and (stall < STALL or link > LINK_BUSY):
        return max(1, hosts)
    return max(1, min(wanted, GROWTH * max(1, hosts)))

"""Which rank of how many this process is, by torch.distributed or by what a launcher says."""

from __future__ import annotations

import os
import sys


def ranks_of_torch() -> tuple[int, int] | None:
    """Returns this rank and the number of ranks of torch.distributed; None where that is not set up."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def this_rank() -> tuple[int, int]:
    """Returns this rank and the number of ranks, as far as they are known by now: 0 and 1 if they are not."""
    if (known := ranks_of_torch()) is not None:
        return known
    if "RANK" not in os.environ:
        return 0, 1  # not known yet: a launcher that sets WORLD_SIZE alone numbers its ranks later
    return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))

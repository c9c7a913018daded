"""Every rank says where it runs, and all of them add up their numbers."""

import os

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
local = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]
print(f"rank {world.rank} of {world.size}: {os.environ['SM_CURRENT_HOST']}, local rank {local}; the sum is {total}")
assert total == world.size * (world.size - 1) // 2

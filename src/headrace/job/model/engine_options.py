"""Options of the local engine and of Slurm: how hosts are played, and what nodes are asked for with.
"""

from __future__ import annotations

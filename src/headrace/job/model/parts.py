"""The parts of a job that users name: instance groups, input channels, distributions.
"""

from __future__ import annotations

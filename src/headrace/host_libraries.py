"""What headrace itself needs on a host of a job: by the names of their modules, what pip calls them and which versions.

Standard library only: a container reads it before anything else is there.
"""

from __future__ import annotations

LIBRARIES = {
    "msgspec": "msgspec>=0.18.2",
    "numpy": "numpy>=1.24",
    "psutil": "psutil>=6.0",
    "xxhash": "xxhash>=3.4",
}

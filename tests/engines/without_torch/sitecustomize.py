"""Hides torch from programs whose PYTHONPATH has this folder: a feed server that nobody asks for batches needs none.

It imports torch at its start where there is one, which is most of what a small job costs.
"""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]

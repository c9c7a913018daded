"""In front on PYTHONPATH: programs find no torch, so a feed server that needs none starts in a quarter of the time."""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]  # importlib finds no module of that name then

"""The stage on which the tests of this folder run real jobs."""

from stage import stage

__all__ = ["stage"]

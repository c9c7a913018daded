"""The ways to do the work: one module a contender."""

"""Measured figures of a run, each with unit, window and formula."""

"""Batches in memory: their structure, their rows, and the shared memory (slabs) that they lie in."""

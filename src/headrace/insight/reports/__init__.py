"""The report of a run, the comparison of several, the timeline."""

"""A run's metrics over time: its columns summed up into buckets, and the charts made of these.

`chart_data` has the charts as values, `charts` makes those of `headrace metrics` and of the job page, `summary` those
of a report and of a comparison.
"""

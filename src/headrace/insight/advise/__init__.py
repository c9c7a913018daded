"""How many data hosts of which type remove the wait, and whether that is cheaper.

`insight.performance_model` says how long a step takes on a cluster, `calibrate` what a run tells it, `clusters` what
candidates cost and which stand out, whether the model may be believed, and all of it in sentences, and `advisor` reads
a run and joins all.
"""

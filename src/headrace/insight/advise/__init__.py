"""How many data hosts of which type remove the wait, and whether that is cheaper.

`insight.performance_model` says how long a step takes on a cluster, `calibrate` what a run tells it (`measured_inputs`
has the values, `link_bandwidth` those of its networks), `clusters` what candidates cost and which stand out, `validity`
whether the model may be believed, `advice_text` puts it into sentences, and `advisor` reads a run and joins all.
"""

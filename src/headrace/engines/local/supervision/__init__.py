"""The life of a run on this machine: start it, watch its agents, try again, end what is left, report."""

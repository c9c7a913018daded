"""Which samples are loaded in which order, and where in that order the trainer is."""

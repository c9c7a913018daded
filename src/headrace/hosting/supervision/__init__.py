"""The life of a run on a machine: its helpers, its attempts, its budget, and what is removed."""

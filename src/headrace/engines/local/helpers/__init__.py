"""Programs of a run beside its agents: they stage and serve channels, install, copy and collect."""

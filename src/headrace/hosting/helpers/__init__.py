"""Programs that a run starts beside its agents: they install, stage and serve channels, restore, sync and collect."""

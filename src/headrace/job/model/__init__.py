"""What a job file may hold, as frozen models: groups, channels, distribution, options of engines and platforms."""

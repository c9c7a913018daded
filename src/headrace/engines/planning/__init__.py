"""From a job to what its hosts read, the same in every engine: artefacts, channels, requirements."""

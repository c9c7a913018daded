"""Memory that a stream holds: over many samples, and for a shuffle of some quality."""

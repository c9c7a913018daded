"""Facts about the world: instance types and their shapes. Imports nothing of ours."""

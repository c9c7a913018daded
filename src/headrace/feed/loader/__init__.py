"""The `DataLoader` that a training script uses, and one pass over it."""

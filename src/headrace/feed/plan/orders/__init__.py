"""Which row stands at which plan position: orders, as pure functions of (seed, epoch, position), without batches."""

"""What a run cost or will cost: billed seconds, list prices, projections."""

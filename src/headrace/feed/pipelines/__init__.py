"""A pipeline: how it is named and opened, how its random numbers are seeded, and how samples become batches."""

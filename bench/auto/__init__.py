"""See `bench.auto.__main__`."""

"""Runs a grid: decides what is next, writes it into the journal, does it, and is the only one that does."""

"""The fast engine: several clients at once on one GPU."""

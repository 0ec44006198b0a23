"""Datasets: sources, decoding, the cache, and scenarios that distribute images over clients."""

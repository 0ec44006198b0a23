"""Data: sources, decoding, scenarios and augmentation."""

"""Measurements on miniatures that one core of a CPU runs in minutes: options chosen on validation, and comparisons."""

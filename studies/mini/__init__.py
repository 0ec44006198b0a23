"""Measurements on miniatures that one core of a CPU runs in minutes, and the page about them."""

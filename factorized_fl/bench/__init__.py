"""Benchmark suites: a grid of runs as data, one result file for each run, and a page of tables."""

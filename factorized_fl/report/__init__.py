"""Runs on a terminal and on a page: progress, tables, charts, figures."""

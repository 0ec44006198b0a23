"""Run directories: the files of a run, their reader, and the statistic that compares runs."""

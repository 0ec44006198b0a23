"""What a run shows on a terminal and on its page: progress, tables, charts, figures."""

"""What a person sees of a run: progress, tables, and later the page."""

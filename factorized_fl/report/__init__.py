"""What a person sees of a run: progress, tables, the page, figures."""

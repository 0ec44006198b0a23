"""The paper's tables, figures and claims, run again and compared with the published numbers."""

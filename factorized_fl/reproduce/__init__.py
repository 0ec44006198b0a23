"""The paper's tables, figures and claims, run again and set beside what was published."""

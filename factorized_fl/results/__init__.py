"""Results of finished runs and the statistic that compares them."""

"""A client's model as something to take away and use: folded, exported, described, predicting."""

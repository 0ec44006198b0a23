"""Export of a client's model, and classification with it."""

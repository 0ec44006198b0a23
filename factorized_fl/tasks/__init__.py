"""What a model is trained and scored by: augmentation, normalisation, confusion matrices."""

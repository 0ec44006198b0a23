"""Inputs and metrics of image classification: augmentation, normalisation and confusion matrices."""

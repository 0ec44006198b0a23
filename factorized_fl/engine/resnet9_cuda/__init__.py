"""The CUDA engine: ResNet-9 of several clients at once on one GPU."""

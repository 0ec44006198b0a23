"""The lowest layer: tensors and their roles, mixing, the wire format, errors, files, seeds."""

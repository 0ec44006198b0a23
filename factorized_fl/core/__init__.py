"""What every layer stands on: tensors and their roles, mixing, the wire format, errors, files, seeds."""

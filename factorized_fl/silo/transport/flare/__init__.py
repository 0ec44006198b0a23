"""The transport between machines: NVIDIA FLARE, a gRPC connection with mutual TLS. All that names FLARE is here."""

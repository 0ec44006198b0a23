"""The transport between machines: NVIDIA FLARE, a gRPC connection with mutual TLS. Only this folder imports FLARE."""

"""Encrypted aggregation: the server computes weighted sums of tensors that it cannot read.

ckks       the cryptography: keys, ciphertexts, weighted sums of ciphertexts (the only module that imports TenSEAL)
packing    named tensors as rows of slots, and the bytes of a client's update
tags       secret check sums, which verify that a download is the weighted sum that the server claims
client     the clients' half: encrypt updates, decrypt and check downloads
server     the server's half: weighted sums of the clients' ciphertexts
"""

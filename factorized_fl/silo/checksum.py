"""A digest of a checkpoint's tensors: a flipped bit in stored numbers is noticed before they are used."""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import safe_open

from factorized_fl.core.views import Tensors


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns a digest of names, types, shapes and values."""
    found = blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def read_checked(path: Path, federation: str) -> tuple[int, Tensors, bool]:
    """Returns a checkpoint's round and tensors, and whether it is of this federation.

    Raises ValueError if the digest in the file is not that of the tensors, and other errors of a damaged file. Files of
    earlier versions have no digest.
    """
    with safe_open(path, "pt") as file:
        tags = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if "digest" in tags and tags["digest"] != digest_of(tensors):
        raise ValueError("its numbers have changed since they were written")
    return int(tags["round"]), tensors, tags.get("federation") == federation

"""A search for private keys in the files of other parties."""

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

_PIECE = 48  # bytes


def private_keys(root: Path) -> dict[str, bytes]:
    """The private exponent of every key, by the folder below `root` in which the key lies."""
    found = {}
    for path in root.rglob("*"):
        if path.is_file() and b"PRIVATE KEY" in (content := path.read_bytes()):
            key = load_pem_private_key(content, password=None)
            assert isinstance(key, rsa.RSAPrivateKey)
            found[path.relative_to(root).parts[0]] = key.private_numbers().d.to_bytes(256, "big")
    return found


def foreign_secrets(root: Path, secrets: Mapping[str, bytes]) -> list[Path]:
    """The files that hold a piece of another party's private exponent, as bytes or in base64 at any position."""
    texts = {n: [b64encode(secret[i : i + _PIECE]) for i in range(3)] for n, secret in secrets.items()}
    found = []
    for path in root.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            text = b"".join(content.split())  # without the ends of lines
            lies = path.relative_to(root).parts[0]
            others = [owner for owner in secrets if owner != lies]
            held = any(secrets[o][:_PIECE] in content or any(part in text for part in texts[o]) for o in others)
            found += [path] * held
    return found

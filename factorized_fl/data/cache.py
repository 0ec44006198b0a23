"""A cache of decoded images: one safetensors file per image set in the user's cache folder."""

import json
import os
import tempfile
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from factorized_fl.core.errors import UserError
from factorized_fl.data.images import ImageSet
from factorized_fl.data.windows import current_window

# Increase this number whenever decoding, scaling or the layout of the file changes.
_VERSION = 3


def cache_folder() -> Path:
    """Return the folder for decoded and fetched data: $FFL_CACHE, or else the user's usual cache folder."""
    if own := os.environ.get("FFL_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "factorized-fl").expanduser()


def cached(key_files: Sequence[Path], params: dict[str, Any], build: Callable[[], ImageSet]) -> ImageSet:
    """Return the cached image set of these files and parameters; without an intact one, cache the result of `build`."""
    entry = cache_folder() / "decoded" / f"{_key(key_files, params)}.safetensors"
    if (stored := _read(entry)) is not None:
        return stored
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built = build()
    notes = [str(warning.message) for warning in caught]
    _warn(notes)
    try:
        _write(entry, built, notes)
    except (OSError, SafetensorError) as error:
        # The reason leaves out the temporary file's name, so that the same error gives the same warning only once.
        _warn_once(entry.parent, getattr(error, "strerror", None) or str(error))
    return built


def _key(files: Sequence[Path], params: dict[str, Any]) -> str:
    """Return a digest of the parameters and of the files' contents, so that an edited file is decoded again."""
    window = current_window()
    chosen = [_VERSION, params] if window is None else [_VERSION, params, [window.level, window.width]]
    key = sha256(json.dumps(chosen, sort_keys=True).encode())
    for file in files:
        try:
            with file.open("rb") as opened:
                key.update(file_digest(opened, "sha256").digest())
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror}): check the path and its permissions.") from error
    return key.hexdigest()


def _warn(notes: Sequence[str]) -> None:
    """Repeat the warnings of decoding: they are given at every use, not only when the images are decoded."""
    for note in notes:
        warnings.warn(note, stacklevel=4)


def _write(entry: Path, images: ImageSet, notes: Sequence[str]) -> None:
    given = {"images": images.images, "labels": images.labels, "split": images.split}
    tensors = {name: tensor.contiguous() for name, tensor in given.items() if tensor is not None}
    about = json.dumps({"name": images.name, "classes": images.classes, "notes": notes})
    entry.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=entry.parent, suffix=".tmp")
    os.close(handle)
    try:
        save_file(tensors, temporary, {"about": about, "checksum": _checksum(about, tensors)})
        os.replace(temporary, entry)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _read(entry: Path) -> ImageSet | None:
    """Return an entry, mapped into memory that processes share, or None if it is missing or damaged."""
    try:
        with safe_open(entry, "pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata["checksum"] != _checksum(metadata["about"], tensors):
            return None
        about = json.loads(metadata["about"])
        images = ImageSet(name=about["name"], classes=tuple(about["classes"]), **tensors)
        _warn(about["notes"])
        return images
    except (OSError, SafetensorError, UserError, KeyError, TypeError, ValueError):
        return None


def _checksum(about: str, tensors: dict[str, torch.Tensor]) -> str:
    total = zlib.crc32(about.encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].numpy().data, total)
    return str(total)


@cache
def _warn_once(folder: Path, reason: str) -> None:
    warnings.warn(
        f"Decoded images cannot be stored in {folder} ({reason}), so every run decodes them again: "
        "free some space or point FFL_CACHE at a writable folder.",
        stacklevel=3,
    )

"""The test images that every client classified right: one bit for each image, so that runs can be compared in pairs.

The file has one group of tensors for each set of test images, because clients of one domain share theirs. `images.G`
are marks of the images, int32 [n]; `clients.G` are numbers of clients from 1, int32 [m]; `right.G` are bits, uint8
[m, ceil(n / 8)].
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from factorized_fl.core.files import write_atomically
from factorized_fl.core.views import Evaluated
from factorized_fl.data.scenarios import Scenario
from factorized_fl.results.schema import RIGHT, Record

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Graded:
    """One client's test: which images were classified right, and marks that are equal for equal images."""

    right: Array  # bool [n]
    images: Array  # int32 [n]


def image_marks(scenario: Scenario, positions: torch.Tensor) -> Array:
    """Return a checksum of each image at the positions, int32 [n]; equal images have equal checksums."""
    found = [zlib.crc32(image) for image in scenario.images[positions].numpy()]
    return np.array(found, dtype=np.uint32).view(np.int32)


def save_graded(path: Path, scenario: Scenario, results: Mapping[int, Evaluated]) -> None:
    """Write which test images each client, counted from 0, classified right; results without bits are left out."""
    groups: dict[bytes, tuple[Array, list[int], list[Array]]] = {}
    for k, result in results.items():
        if result.right is not None:
            positions = scenario.clients[k].test
            key = positions.numpy().tobytes()
            if key not in groups:
                groups[key] = image_marks(scenario, positions), [], []
            _, clients, rows = groups[key]
            clients.append(k + 1)
            rows.append(np.packbits(result.right.numpy()))
    tensors: dict[str, Array] = {}
    for index, (images, clients, rows) in enumerate(groups.values()):
        tensors |= {f"images.{index}": images, f"right.{index}": np.stack(rows)}
        tensors[f"clients.{index}"] = np.array(clients, dtype=np.int32)
    write_atomically(path, safetensors.numpy.save(tensors))


def load_graded(path: Path) -> dict[int, Graded]:
    """Return the graded images by client, counted from 0; raise ValueError or SafetensorError for a damaged file."""
    tensors = safetensors.numpy.load(path.read_bytes())
    found: dict[int, Graded] = {}
    for name, images in tensors.items():
        part, _, index = name.partition(".")
        if part == "images":
            clients, rows = tensors[f"clients.{index}"], tensors[f"right.{index}"]
            bits = np.unpackbits(rows, axis=1, count=len(images)).astype(bool)
            found |= {int(k) - 1: Graded(row, images) for k, row in zip(clients, bits, strict=True)}
    return found


def read_graded(run: Path, notes: list[str]) -> dict[int, Graded]:
    """Return a run's graded images; empty for a run of an older version, and with a new note for a damaged file."""
    try:
        return load_graded(run / RIGHT)
    except FileNotFoundError:
        return {}
    except (OSError, SafetensorError, ValueError, KeyError, IndexError) as error:
        note = f"{RIGHT} cannot be read ({error}): tests are compared by their counts."
        notes += [note] if note not in notes else []
        return {}


def pack_graded(graded: Mapping[int, Graded], folder: Path) -> list[Record]:
    """Return the graded images for a JSON file; each set of images goes into a file of its own in the folder.

    Runs on the same test images share that file, because its name is a checksum of the marks.
    """
    found: dict[str, Record] = {}
    for k, one in sorted(graded.items()):
        name = f"images-{zlib.crc32(one.images.tobytes()):08x}.safetensors"
        if name not in found:
            found[name] = {"images": name, "clients": [], "bits": []}
            if not (folder / name).exists():
                write_atomically(folder / name, safetensors.numpy.save({"images": one.images}))
        found[name]["clients"].append(f"client {k + 1}")
        found[name]["bits"].append(base64.b64encode(np.packbits(one.right).tobytes()).decode())
    return list(found.values())


def unpack_graded(packed: Sequence[Mapping[str, Any]], folder: Path) -> dict[int, Graded]:
    """Return the argument of `pack_graded`, without the clients whose file of images the folder does not have.

    Raise ValueError, KeyError or SafetensorError for a damaged record or file.
    """
    found: dict[int, Graded] = {}
    for group in packed:
        path = folder / Path(group["images"]).name
        if path.exists():
            images = safetensors.numpy.load(path.read_bytes())["images"]
            for name, text in zip(group["clients"], group["bits"], strict=True):
                bits = np.unpackbits(np.frombuffer(base64.b64decode(text), dtype=np.uint8), count=len(images))
                found[int(name.removeprefix("client ")) - 1] = Graded(bits.astype(bool), images)
    return found

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from factorized_fl.data import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test may touch the user's cache."""
    folder = tmp_path_factory.mktemp("cache") / "own"
    monkeypatch.setenv("FFL_CACHE", str(folder))
    cache._warn_once.cache_clear()
    return folder


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def png() -> Callable[[np.ndarray], bytes]:
    """Encode uint8 [H, W, 3] or [H, W]."""
    return _png


@pytest.fixture
def write_parquet() -> Callable[..., Path]:
    """Write a file as the hub does: images are arrays (encoded as PNG) or bytes."""

    def write(
        path: Path,
        images: Sequence[np.ndarray | bytes | None],
        labels: Sequence[Any],
        *,
        names: Sequence[str] | None = ("cat", "dog", "owl"),
        columns: tuple[str, str] = ("image", "label"),
        extra: dict[str, list[Any]] | None = None,
        rows: int = 4,
    ) -> Path:
        encoded = [_png(image) if isinstance(image, np.ndarray) else image for image in images]
        data: dict[str, Any] = {columns[0]: [{"bytes": each, "path": None} for each in encoded], columns[1]: labels}
        struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        arrays = {columns[0]: pa.array(data[columns[0]], struct), columns[1]: pa.array(labels), **(extra or {})}
        table = pa.table(arrays)
        if names is not None:
            features = {columns[0]: {"_type": "Image"}, columns[1]: {"names": list(names), "_type": "ClassLabel"}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=rows)
        return path

    return write


@pytest.fixture
def colours() -> list[np.ndarray]:
    """Six plain 4x4 images; the red channel tells which is which."""
    return [np.full((4, 4, 3), (10 * i, 7, 200), np.uint8) for i in range(6)]

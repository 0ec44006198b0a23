import resource
import warnings
from pathlib import Path

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.cache import cache_folder, cached
from factorized_fl.data.images import ImageSet

IMAGES = torch.arange(2 * 3 * 64 * 64).remainder(251).to(torch.uint8).reshape(2, 3, 64, 64)


class Builder:
    def __init__(self, split: torch.Tensor | None = None) -> None:
        self.calls = 0
        self.split = split

    def __call__(self) -> ImageSet:
        self.calls += 1
        return ImageSet("tiny", IMAGES, torch.tensor([1, 0]), ("a", "b"), self.split)


@pytest.fixture
def source(tmp_path) -> Path:
    file = tmp_path / "source"
    file.write_bytes(b"one")
    return file


def entries() -> list[Path]:
    return sorted((cache_folder() / "decoded").iterdir())


@pytest.mark.parametrize("split", [None, torch.tensor([0, 2], dtype=torch.uint8)])
def test_the_second_time_is_read_back(source, split) -> None:
    build = Builder(split)
    first, second = (cached([source], {"size": 2}, build) for _ in range(2))
    assert build.calls == 1
    for got in (first, second):
        assert (got.name, got.classes, got.labels.tolist()) == ("tiny", ("a", "b"), [1, 0])
        assert torch.equal(got.images, IMAGES)
        assert (got.split is None) == (split is None)
    assert split is None or torch.equal(second.split, split)


def test_only_the_entry_is_left_behind(source) -> None:
    cached([source], {}, Builder())
    assert [entry.suffix for entry in entries()] == [".safetensors"]


def test_the_key_is_contents_and_parameters(source, tmp_path) -> None:
    build = Builder()
    cached([source], {"size": 2}, build)
    source.rename(tmp_path / "moved")
    cached([tmp_path / "moved"], {"size": 2}, build)
    assert build.calls == 1
    cached([tmp_path / "moved"], {"size": 3}, build)
    assert build.calls == 2
    (tmp_path / "moved").write_bytes(b"two")
    cached([tmp_path / "moved"], {"size": 2}, build)
    assert build.calls == 3


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "header"])
def test_a_damaged_entry_is_rebuilt_silently(source, damage) -> None:
    build = Builder()
    cached([source], {}, build)
    (entry,) = entries()
    whole = entry.read_bytes()
    flipped = whole[:-3000] + bytes([whole[-3000] ^ 1]) + whole[-2999:]
    entry.write_bytes({"cut": whole[:-1], "flip": flipped, "empty": b"", "header": b"\xff" * 8 + whole[8:]}[damage])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(cached([source], {}, build).images, IMAGES)
        cached([source], {}, build)
    assert build.calls == 2


def test_an_unwritable_cache_warns_once(source, own_cache) -> None:
    own_cache.write_text("a file where the folder should be")
    build = Builder()
    with pytest.warns(UserWarning, match="FFL_CACHE"):
        assert torch.equal(cached([source], {}, build).images, IMAGES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached([source], {}, build)
    assert build.calls == 2


def test_a_full_disk_warns_once_and_leaves_nothing(source) -> None:
    build = Builder()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            for _ in range(2):
                cached([source], {}, build)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert build.calls == 2
    assert len(caught) == 1
    assert entries() == []


def test_a_loaded_set_does_not_write_through_to_the_file(source) -> None:
    build = Builder()
    cached([source], {}, build)
    cached([source], {}, build).images.zero_()
    assert torch.equal(cached([source], {}, build).images, IMAGES)
    assert build.calls == 1


def test_a_missing_key_file(tmp_path) -> None:
    with pytest.raises(UserError, match="none cannot be read"):
        cached([tmp_path / "none"], {}, Builder())


def test_where_the_cache_lies(monkeypatch, tmp_path, own_cache) -> None:
    assert cache_folder() == own_cache
    monkeypatch.delenv("FFL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "factorized-fl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "factorized-fl"


def test_warnings_of_decoding_are_repeated_for_cached_images(source) -> None:
    def build() -> ImageSet:
        warnings.warn("Left out one.", stacklevel=2)
        return Builder()()

    for _ in range(2):
        with pytest.warns(UserWarning, match="Left out one"):
            cached([source], {}, build)

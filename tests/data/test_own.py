"""A party's own data: every layout gives the same images, and a first look finds what is wrong."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from factorized_fl.data.folder import read_folder
from factorized_fl.data.own import inspect, parts_of, read_own
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.data.sources import load
from factorized_fl.errors import UserError


def picture(path: Path, value: int, size: tuple[int, int] = (8, 8), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(value).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three cats and two dogs, grey and colour, of different sizes."""
    for index, size in enumerate(((8, 8), (16, 8), (9, 20))):
        picture(tmp_path / "pets" / "cat" / f"{index}.png", index, size, "RGB")
    for index in range(2):
        picture(tmp_path / "pets" / "dog" / f"{index}.png", 10 + index)
    return tmp_path / "pets"


def test_class_folders_as_a_research_run_reads_them(folder: Path) -> None:
    own = read_own(folder, "clinic", size=8, channels=1)
    assert (own.name, own.classes, own.split) == ("clinic", ("cat", "dog"), None)
    assert torch.equal(own.images, read_folder(folder, size=8, channels=1).images)
    assert own.labels.tolist() == [0, 0, 0, 1, 1]


def test_a_split_that_is_given_is_kept(tmp_path: Path) -> None:
    for index in range(6):
        picture(tmp_path / "train" / "ab"[index % 2] / f"{index}.png", index)
    picture(tmp_path / "validation" / "b" / "6.png", 6)
    picture(tmp_path / "validation" / "a" / "9.png", 9)
    picture(tmp_path / "test" / "b" / "7.png", 7)
    picture(tmp_path / "test" / "a" / "8.png", 8)
    own = read_own(tmp_path, "lab", size=8, channels=1)
    client = build_scenario([own], ((0.5,), (0.25,)), clients=1).clients[0]
    assert [len(client.train), len(client.validation), len(client.test)] == [6, 2, 2]
    assert own.labels[client.test].tolist() == [0, 1]


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_validation_has_more_than_one_name(name: str, tmp_path: Path) -> None:
    for index, split in enumerate(("train", name, "test")):
        for kind in "ab":
            picture(tmp_path / split / kind / "1.png", 2 * index + (kind == "b"))
    assert [part.split for part in parts_of(tmp_path)] == ["train", "validation", "test"]
    (found,) = load("folder", tmp_path, size=8, channels=1)
    assert len(found) == 6


@pytest.mark.parametrize("names", [("train", "val"), ("train", "test", "extra"), ("train", "test", "val", "valid")])
def test_half_a_split_is_not_taken_for_domains(names: tuple[str, ...], tmp_path: Path) -> None:
    for index, split in enumerate(names):
        picture(tmp_path / split / "a" / "1.png", index)
    with pytest.raises(UserError, match="images that are split lie in train and test, perhaps in validation"):
        load("folder", tmp_path, size=8, channels=1)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for index, name in enumerate(("bus", "train")):
        picture(tmp_path / name / "1.png", index)
    (found,) = load("folder", tmp_path, size=8, channels=1)
    assert found.classes == ("bus", "train")


def test_a_test_class_that_nobody_trains_is_refused(tmp_path: Path) -> None:
    for part, names in (("train", "ab"), ("test", "bc")):
        for name in names:
            picture(tmp_path / part / name / "0.png", 1)
    with pytest.raises(UserError, match="'c' that no training image has"):
        read_own(tmp_path, "lab", size=8, channels=1)


def test_parquet_whole_and_split(tmp_path: Path, write_parquet, colours) -> None:
    file = write_parquet(tmp_path / "all" / "data.parquet", colours[:4], [0, 1, 2, 1])
    whole = read_own(file, "lab", size=4, channels=3)
    assert (whole.split, whole.labels.tolist()) == (None, [0, 1, 2, 1])
    write_parquet(tmp_path / "split" / "train.parquet", colours[:4], [0, 1, 2, 1])
    write_parquet(tmp_path / "split" / "test.parquet", colours[3:5], [2, 0])
    split = read_own(tmp_path / "split", "lab", size=4, channels=3)
    assert split.split is not None
    assert split.split.tolist() == [0, 0, 0, 0, 2, 2]
    found = inspect(tmp_path / "split")
    assert found.counts["test"] == {"owl": 1, "cat": 1}
    assert found.across == [("train.parquet row 3", "test.parquet row 0")]
    (alone,) = load("folder", file)
    assert len(alone.images) == 4
    write_parquet(tmp_path / "split" / "extra.parquet", colours[:1], [0])
    with pytest.raises(UserError, match=r"extra\.parquet is in no part"):
        inspect(tmp_path / "split")


def test_first_look_counts_sizes_and_finds_what_is_wrong(tmp_path: Path) -> None:
    for index in range(12):
        picture(tmp_path / "train" / "a" / f"{index}.png", index)
        picture(tmp_path / "train" / "b" / f"{index}.png", 100 + index, (16, 8), "RGB")
        picture(tmp_path / "test" / "a" / f"{index}.png", 200 + index)
    picture(tmp_path / "test" / "a" / "leak.bmp", 3)  # train/a/3.png in another format
    picture(tmp_path / "train" / "b" / "wrong.png", 5)  # train/a/5.png under another class
    picture(tmp_path / "train" / "a" / "again.png", 7)
    (tmp_path / "train" / "b" / "torn.png").write_bytes(b"\x89PNG and no more")
    found = inspect(tmp_path)
    assert found.counts == {"train": {"a": 13, "b": 13}, "test": {"a": 13}}
    assert found.sizes == {(8, 8): 27, (16, 8): 12}
    assert (found.total, found.grey, found.unreadable) == (39, 27, ["train/b/torn.png"])
    assert found.across == [("train/a/3.png", "test/a/leak.bmp")]
    assert found.contradicted == [("train/a/5.png", "train/b/wrong.png")]
    assert found.repeated == [("train/a/7.png", "train/a/again.png")]
    assert len(found.complaints()) == 4


def test_first_look_at_class_folders_that_hold_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "bird").mkdir()
    (folder / "fish").mkdir()
    (folder / "fish" / "0.png").write_bytes(b"no picture")
    found = inspect(folder)
    assert found.empty == ["bird", "fish"]
    assert any("'bird' holds no readable image" in complaint for complaint in found.complaints())
    (tmp_path / "bad" / "a").mkdir(parents=True)
    (tmp_path / "bad" / "a" / "0.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="holds no readable images"):
        inspect(tmp_path / "bad")


def test_first_look_at_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no readable images"):
        inspect(tmp_path)
    with pytest.raises(UserError, match="no folder or parquet"):
        inspect(tmp_path / "nowhere")


def test_pictures_of_12_bits_in_16_are_told_before_they_are_trained_on(tmp_path: Path) -> None:
    for index, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        pixels = np.full((8, 8), 4095 - index, dtype=np.uint16)
        Image.fromarray(pixels).save(tmp_path / name / "1.png")
    dark = r"nearly black: no value is above 15 of 255\. Scale 16-bit pictures"
    with pytest.warns(UserWarning, match=dark):
        read_own(tmp_path, "clinic", size=8, channels=1)
    assert any(re.search(dark, line) for line in inspect(tmp_path).complaints())


def test_first_look_says_what_no_run_takes(tmp_path: Path) -> None:
    for index in range(8):
        picture(tmp_path / "train" / "ab"[index % 2] / f"{index}.png", index)
        picture(tmp_path / "test" / "abc"[index % 3] / f"{index}.png", 10 + index)
    assert "The class 'c' has no training images: no run takes it." in inspect(tmp_path).complaints()
    for index in range(2):
        (tmp_path / "test" / "a" / f"bad{index}.png").write_bytes(b"broken")
        said = [line for line in inspect(tmp_path).complaints() if "cannot be read" in line]
        assert ("so many that no run takes them" in said[0]) == bool(index)


def test_a_look_tells_how_far_it_is_and_knows_a_folder_of_domains(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "one" / label).mkdir(parents=True)
        for number in range(20):
            Image.new("L", (4, 4), 10 * number + 50).save(tmp_path / "one" / label / f"{number}.png")
    told: list[int] = []
    assert inspect(tmp_path / "one", told.append).total == 40
    assert told == [16, 32, 40]
    with pytest.raises(UserError, match=r"holds folders of class folders, .* inspect each by itself"):
        inspect(tmp_path)
